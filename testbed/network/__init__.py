"""Ports, delays and distances of a testbed."""
