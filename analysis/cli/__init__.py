"""Command-line verbs of the analysis package."""
