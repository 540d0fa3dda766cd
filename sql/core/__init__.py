"""Schema, row types, database engines and migrations."""
