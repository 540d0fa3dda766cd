"""Continuous operation: states of sites, downtimes and overrides."""
