"""Database engines, their dialects and errors, and the mapping of row classes."""
