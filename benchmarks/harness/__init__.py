"""Shared tools of the benchmarks."""
