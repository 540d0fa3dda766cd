"""Command-line verbs of the collectors package."""
