"""Tests from Git repositories."""
