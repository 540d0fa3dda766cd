"""Imports into PostgreSQL: where it might differ from SQLite."""

from __future__ import annotations

from bulk_contract import (  # noqa: F401 - tests and fixtures
    scratch_store,
    test_bulk_write_equals_single_writes,
    test_duplicates_and_conflicts_in_one_batch,
    test_empty_batch,
    test_new_valid_rows_use_column_path,
)
from import_contract import (  # noqa: F401 - tests and fixtures
    measured_file,
    other_store,
    plain_file,
    test_bad_replica_flags_merge,
    test_export_import_round_trip,
    test_first_recorded_value_wins,
    test_import_updates_remote_jobs,
    test_invalid_row_is_reported_and_others_imported,
    test_merge_creates_no_duplicates,
)
