"""Benchmarks by name: each module measures and returns its figures."""
