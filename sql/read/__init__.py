"""Queries for figures, campaigns, sites and the overview."""
