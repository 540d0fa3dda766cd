"""Comparison pages."""
