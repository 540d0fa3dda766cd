"""Measurements as Arrow streams."""
