"""Benchmarks of the worker, the kit and the batch systems."""
