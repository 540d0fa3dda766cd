"""Benchmarks of verdicts, of diagnoses and of ROOT releases."""
