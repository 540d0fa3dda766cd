"""Promises of database copies, from SQLite into every database."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_verbs import find_command
from click.testing import CliRunner
from measurement_factory import full_measurement, make_measurement
from store_helpers import read_all_tables

from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress


def test_copy_equals_source_and_is_usable(source: str, url: str) -> None:
    counts, copied = copy_database(source, url, bars=no_progress)
    assert copied
    assert all(counts.values()), "no table is left out of this test"
    found = read_all_tables(url)
    assert found == read_all_tables(source)
    assert {name: len(rows) for name, rows in found.items()} == counts
    assert copy_database(source, url, bars=no_progress) == (counts, False)
    with Store.open(url) as store:
        assert store.add(full_measurement(n) for n in (599, 600)) == AddResult(1, 1)
    with pytest.raises(StoreError, match=r"holds other rows: table \w+, \w*id"):
        copy_database(source, url, bars=no_progress)


def test_copy_refuses_nonempty_target(source: str, url: str) -> None:
    with Store.open(url) as store:
        store.add([make_measurement()])
    before = read_all_tables(url)
    with pytest.raises(StoreError, match=r"other rows(.|\n)*Give an empty one"):
        copy_database(source, url, bars=no_progress)
    assert read_all_tables(url) == before


def test_interrupted_copy_leaves_nothing(source: str, url: str) -> None:
    @contextmanager
    def interrupted(_what: str, _total: int) -> Iterator[Any]:
        def step(done: int, _note: str = "") -> None:
            if done > 600:
                raise KeyboardInterrupt

        yield step

    with pytest.raises(KeyboardInterrupt):
        copy_database(source, url, bars=interrupted)
    assert not any(read_all_tables(url).values())
    assert copy_database(source, url, bars=no_progress)[1]


def test_damaged_source_is_reported(source: str, url: str, tmp_path: Path) -> None:
    file = Path(shutil.copy(source.removeprefix("sqlite:///"), tmp_path / "damaged.db"))
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"\xff" * 200_000)
    with pytest.raises(StoreError, match=r"damaged\.db: the database is damaged"):
        copy_database(f"sqlite:///{file}", url, bars=no_progress)
    assert not any(read_all_tables(url).values())


def test_copy_onto_itself_or_from_missing_source(source: str, url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the same database"):
        copy_database(source, source, bars=no_progress)
    with pytest.raises(NothingToDoError):
        copy_database(f"sqlite:///{tmp_path}/none.db", url, bars=no_progress)


def test_copy_command(source: str, url: str) -> None:
    for said in ("copied and compared every row", "all rows were present"):
        result = CliRunner().invoke(find_command("db"), ["copy", source, url, "--json"])
        assert result.exception is None
        assert {"table": "extra", "rows": 7} in json.loads(result.stdout)
        assert said in result.stderr
