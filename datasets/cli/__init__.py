"""Command-line verbs of the datasets package."""
