"""Pages of changes over time."""
