"""Test definitions, axes, variants and their identity."""
