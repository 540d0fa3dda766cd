"""Pages of figures."""
