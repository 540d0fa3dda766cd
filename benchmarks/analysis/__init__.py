"""Benchmarks of verdicts and of ROOT releases."""
