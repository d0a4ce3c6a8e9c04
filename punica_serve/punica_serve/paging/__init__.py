"""Pages of a KvCache: how many a request holds, which it shares, and how contents are found again. Free of torch."""
