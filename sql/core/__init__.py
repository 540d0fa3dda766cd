"""Schema, row types and stored values."""
