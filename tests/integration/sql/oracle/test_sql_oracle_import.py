"""Imports into H2's Oracle mode: where it might differ from SQLite."""

from __future__ import annotations

from import_contract import (  # noqa: F401 - tests and fixtures
    measured_file,
    other_store,
    plain_file,
    test_bad_replica_flags_merge,
    test_first_recorded_value_wins,
    test_invalid_row_is_reported_and_others_imported,
)
