"""Copies from SQLite to PostgreSQL and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_helpers import check_corruption_is_refused, install_corrupting_trigger, read_all_tables

from treehammer.errors import ConfigError
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.text_formatting import no_progress


def test_copy_there_and_back_is_equal(source: str, url: str, tmp_path: Path) -> None:
    back = f"sqlite:///{tmp_path}/back.db"
    copy_database(source, url, bars=no_progress)
    copy_database(url, back, bars=no_progress)
    assert read_all_tables(back) == read_all_tables(source)
    assert copy_database(source, back, bars=no_progress)[1] is False


def test_copy_onto_other_address_of_source_is_refused(source: str, url: str) -> None:
    copy_database(source, url, bars=no_progress)
    with pytest.raises(ConfigError, match="the same database"):
        copy_database(url, f"{url}&application_name=another", bars=no_progress)


def test_corrupted_copy_is_refused(source: str, url: str) -> None:
    install_corrupting_trigger(
        url,
        [
            "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN new.label := 1; RETURN new; END'",
            "CREATE TRIGGER spoil BEFORE INSERT ON job FOR EACH ROW WHEN (new.id = 'b') "
            "EXECUTE FUNCTION spoil()",
        ],
    )
    check_corruption_is_refused(source, url)
