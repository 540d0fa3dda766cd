"""Execution of a job: input, payload, limits, result."""
