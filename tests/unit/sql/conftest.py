"""Fixtures of filled stores."""

from store_helpers import export_rows, exported_store, in_process_reader, other_store, source, write

__all__ = ["export_rows", "exported_store", "in_process_reader", "other_store", "source", "write"]
