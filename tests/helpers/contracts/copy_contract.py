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
from cli_verbs import find_command
from click.testing import CliRunner
from measurement_factory import full_measurement, make_campaign_row, make_job_row, make_measurement
from store_contract import HOSTILE_TEXTS, build_pair, build_verdict

from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.progress import no_progress
from treehammer.sql.auth.keyring import Keyring
from treehammer.sql.core.rows import AttemptRow, ReplicaRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store


def fill_database(url: str) -> None:
    """Rows in every table, awkward ones among them."""
    with Store.open(url) as store:
        store.add_campaign(
            make_campaign_row(), [make_job_row("a"), make_job_row("b", label=HOSTILE_TEXTS[2])]
        )
        store.set_attempts([AttemptRow("a", 2, "lost", 5, 9, None, "lost", "gone")])
        store.add(full_measurement(n) for n in range(600))
        store.add(
            make_measurement(job=str(n), host=text, extras={"e": n / 3})
            for n, text in enumerate(HOSTILE_TEXTS)
        )
        store.add([make_measurement(retries=-(2**63), eff_job=sys.float_info.max, site="")])
        store.add_replicas([ReplicaRow("r", 1, "set", "h", "s", "d", "f", "root://", False, "")])
        store.replace_comparison(
            "c", [build_pair("c", 0.1), build_pair("c", 5e-324)], [build_verdict("c")]
        )
        keyring = Keyring(store._engine)
        keyring.create_key(b"master", "read", HOSTILE_TEXTS[2], now_us=1)
        keyring.revoke_tokens("job", "a", now_us=2)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('copy')}/source.db"
    fill_database(url)
    return url


def read_all_tables(url: str) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with Store.open(url, create=False) as store, store._engine.connect() as connection:
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for table in metadata.sorted_tables
        }


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
    with pytest.raises(StoreError, match=r"holds other rows: table \w+, id"):
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


def test_damaged_source_is_reported(url: str, tmp_path: Path) -> None:
    file = tmp_path / "damaged.db"
    fill_database(f"sqlite:///{file}")
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
    for said in ("copied, every row compared", "every row was there already"):
        result = CliRunner().invoke(find_command("db"), ["copy", source, url, "--json"])
        assert result.exception is None
        assert {"table": "extra", "rows": 7} in json.loads(result.stdout)
        assert said in result.stderr


def install_corrupting_trigger(url: str, statements: list[str]) -> None:
    """Have the database change what is written to it."""
    with Store.open(url) as store, store._engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def check_corruption_is_refused(source: str, url: str) -> None:
    with pytest.raises(StoreError, match=r"differs from what was copied: table job, id b"):
        copy_database(source, url, bars=no_progress)
    assert not any(read_all_tables(url).values())
