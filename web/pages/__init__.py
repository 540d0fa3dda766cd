"""Pages of the results service."""
