"""Numbers and verdicts of load tests, and of reads through caches."""
