"""What copies promise, from SQLite into every database; see :mod:`store_contract`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sql_makers import campaign_row, full_measurement, job_row, make_measurement
from store_contract import HOSTILE, pair, verdict
from verbs import cli_verb

from treehammer.errors import ConfigError, NothingToDo, StoreError
from treehammer.sql.copying import copy_database
from treehammer.sql.keyring import Keyring
from treehammer.sql.recording import Added
from treehammer.sql.rows import AttemptRow, ReplicaRow
from treehammer.sql.schema import metadata
from treehammer.sql.store import Store
from treehammer.terminal import silent


def fill(url: str) -> None:
    """Rows in every table, awkward ones among them."""
    with Store.open(url) as store:
        store.add_campaign(campaign_row(), [job_row("a"), job_row("b", label=HOSTILE[2])])
        store.set_attempts([AttemptRow("a", 2, "lost", 5, 9, None, "lost", "gone")])
        store.add(full_measurement(n) for n in range(600))
        store.add(
            make_measurement(job=str(n), host=text, extras={"e": n / 3})
            for n, text in enumerate(HOSTILE)
        )
        store.add([make_measurement(retries=-(2**63), eff_job=sys.float_info.max, site="")])
        store.add_replicas([ReplicaRow("r", 1, "set", "h", "s", "d", "f", "root://", False, "")])
        store.replace_comparison("c", [pair("c", 0.1), pair("c", 5e-324)], [verdict("c")])
        keyring = Keyring(store._engine)
        keyring.create(b"master", "read", HOSTILE[2], now_us=1)
        keyring.revoke_tokens("job", "a", now_us=2)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('copy')}/source.db"
    fill(url)
    return url


def content(url: str) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with Store.open(url, create=False) as store, store._engine.connect() as connection:
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for table in metadata.sorted_tables
        }


def test_a_copy_is_the_database_and_works_on(source: str, url: str) -> None:
    counts, copied = copy_database(source, url, bars=silent)
    assert copied
    assert all(counts.values()), "no table is left out of this test"
    found = content(url)
    assert found == content(source)
    assert {name: len(rows) for name, rows in found.items()} == counts
    assert copy_database(source, url, bars=silent) == (counts, False)
    with Store.open(url) as store:
        assert store.add(full_measurement(n) for n in (599, 600)) == Added(1, 1)
    with pytest.raises(StoreError, match=r"holds other rows: table \w+, id"):
        copy_database(source, url, bars=silent)


def test_a_database_with_other_rows_is_left_alone(source: str, url: str) -> None:
    with Store.open(url) as store:
        store.add([make_measurement()])
    before = content(url)
    with pytest.raises(StoreError, match=r"other rows(.|\n)*Give an empty one"):
        copy_database(source, url, bars=silent)
    assert content(url) == before


def test_a_copy_that_ends_early_leaves_nothing(source: str, url: str) -> None:
    @contextmanager
    def interrupted(_what: str, _total: int) -> Iterator[Any]:
        def step(done: int, _note: str = "") -> None:
            if done > 600:
                raise KeyboardInterrupt

        yield step

    with pytest.raises(KeyboardInterrupt):
        copy_database(source, url, bars=interrupted)
    assert not any(content(url).values())
    assert copy_database(source, url, bars=silent)[1]


def test_a_damaged_source_is_called_that(url: str, tmp_path: Path) -> None:
    file = tmp_path / "damaged.db"
    fill(f"sqlite:///{file}")
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"\xff" * 200_000)
    with pytest.raises(StoreError, match=r"damaged\.db: the database is damaged"):
        copy_database(f"sqlite:///{file}", url, bars=silent)
    assert not any(content(url).values())


def test_a_copy_onto_itself_and_from_nowhere(source: str, url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the same database"):
        copy_database(source, source, bars=silent)
    with pytest.raises(NothingToDo):
        copy_database(f"sqlite:///{tmp_path}/none.db", url, bars=silent)


def test_the_verb(source: str, url: str) -> None:
    for said in ("copied, every row compared", "every row was there already"):
        result = CliRunner().invoke(cli_verb("db"), ["copy", source, url, "--json"])
        assert result.exception is None
        assert {"table": "extra", "rows": 7} in json.loads(result.stdout)
        assert said in result.stderr


def spoil(url: str, statements: list[str]) -> None:
    """Have the database change what is written to it."""
    with Store.open(url) as store, store._engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def refuses_what_was_changed(source: str, url: str) -> None:
    with pytest.raises(StoreError, match=r"differs from what was copied: table job, id b"):
        copy_database(source, url, bars=silent)
    assert not any(content(url).values())
