"""Shipped tests, the schema of test.toml, the matrix, and tests from Git."""
