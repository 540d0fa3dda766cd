"""Parsing and validation of test.toml."""
