"""Explore pages."""
