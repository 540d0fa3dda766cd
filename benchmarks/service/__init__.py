"""Benchmarks of the results service and its database."""
