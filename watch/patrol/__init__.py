"""Unattended campaigns: starts by time, commit, tag and release, within budgets."""
