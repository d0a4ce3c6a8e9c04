"""Pages of a KvCache that requests share, and how their contents are found again. Free of torch."""
