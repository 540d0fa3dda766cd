"""Command-line verbs of the testbed package."""
