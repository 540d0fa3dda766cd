"""Counts of instructions of a test's read under callgrind."""
