"""A store of a limited rate on this machine, and the process that fetches adapters from it, for benchmarks."""
