"""Command-line verbs of the hctests package."""
