"""Pages of load tests and of reads through caches."""
