"""Predictions of wall time and CPU under other conditions, from one run's counters."""
