"""Dataset specifications, and the shipped ones."""
