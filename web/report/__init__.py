"""Self-contained campaign report."""
