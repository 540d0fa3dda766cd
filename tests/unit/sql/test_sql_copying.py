"""Copies from SQLite to SQLite."""

from __future__ import annotations

from copy_contract import *  # noqa: F403 - the tests that hold for every database
from copy_contract import refuses_what_was_changed, spoil


def test_a_row_that_arrives_otherwise_is_noticed(source: str, url: str) -> None:
    spoil(
        url,
        [
            "CREATE TRIGGER spoil AFTER INSERT ON job WHEN new.id = 'b' "
            "BEGIN UPDATE job SET label = 'x' WHERE id = 'b'; END"
        ],
    )
    refuses_what_was_changed(source, url)
