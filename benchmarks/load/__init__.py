"""Benchmarks of the load generator."""
