"""Tracking: states, attempts, records and failures of submitted jobs."""
