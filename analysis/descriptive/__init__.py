"""Summaries, peer comparison and the status of a day."""
