"""Pages of the watch."""
