"""Export, import, merging and copying of results."""
