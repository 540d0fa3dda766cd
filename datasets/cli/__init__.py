"""Commands ``treehammer datasets``."""
