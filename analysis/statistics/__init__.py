"""Estimates, intervals, verdict rules and the power table."""
