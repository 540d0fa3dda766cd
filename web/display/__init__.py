"""Formatting of values, tables and templates."""
