"""Imports into PostgreSQL: where it might differ from SQLite."""

from __future__ import annotations

from bulk_contract import (  # noqa: F401 - tests and fixtures
    other,
    test_an_empty_table,
    test_duplicates_and_conflicts_in_one_table,
    test_every_table_is_the_same,
    test_what_is_new_and_sound_goes_in_by_columns,
)
from import_contract import (  # noqa: F401 - tests and fixtures
    measured,
    others,
    plain,
    test_a_row_that_is_not_valid_is_named_and_keeps_no_other_out,
    test_jobs_that_went_on_there_are_brought_up_to_date,
    test_marks_of_bad_replicas_merge,
    test_two_installations_merge_without_doubling_any,
    test_what_was_exported_comes_back,
    test_what_was_recorded_first_stays,
)
