"""The command group ``treehammer sites``."""
