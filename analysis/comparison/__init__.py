"""Comparison of two values of an axis: series, sites, attribution and wording."""
