"""Fixtures of filled stores."""

from store_helpers import export_rows, exported_store, other_store, source, write

__all__ = ["export_rows", "exported_store", "other_store", "source", "write"]
