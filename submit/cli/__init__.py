"""Command-line verbs of the submit package."""
