"""Benchmarks of the worker and the kit."""
