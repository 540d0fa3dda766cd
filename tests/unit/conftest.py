"""Quick databases for all unit tests."""

from __future__ import annotations

from quick_databases import quick_databases

__all__ = ["quick_databases"]
