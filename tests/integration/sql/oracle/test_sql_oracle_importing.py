"""Imports into H2's Oracle mode: where it might differ from SQLite."""

from __future__ import annotations

from import_contract import (  # noqa: F401 - tests and fixtures
    measured,
    others,
    plain,
    test_a_row_that_is_not_valid_is_named_and_keeps_no_other_out,
    test_marks_of_bad_replicas_merge,
    test_what_was_recorded_first_stays,
)
