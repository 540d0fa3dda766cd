"""Command-line verbs of the web package."""
