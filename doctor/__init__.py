"""Checks of an installation and of what it reaches: ``treehammer doctor``."""
