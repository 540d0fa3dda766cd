"""Command-line verbs of the sql package."""
