"""What PostgreSQL alone refuses or offers: errors with their remedies, the schema, lost connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement
from postgres_fixture import GUEST_PASSWORD, GUEST_ROLE, SharedPostgresServer
from quick_databases import NEXT_REVISION, next_revision, run_migrations  # noqa: F401 - a fixture
from store_helpers import WriteExport

from treehammer.collectors.record.metric_catalogue import CATALOGUE, MAX_TEXT
from treehammer.errors import ConfigError, ExitCode, NothingToDoError, StoreError
from treehammer.sql.engine import backend
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.transfer.export import export_file
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress

pytestmark = pytest.mark.backends("postgresql")

EVERYTHING = Selection()


@pytest.fixture
def name(url: str) -> str:
    return str(sa.make_url(url).database)


@pytest.fixture
def direct(postgresql: SharedPostgresServer, name: str) -> Iterator[psycopg.Connection]:
    """Connect to the same database as another client."""
    with psycopg.connect(
        host=str(postgresql.folder), dbname=name, user="hammer", autocommit=True
    ) as connection:
        yield connection


@pytest.mark.parametrize(
    ("password", "message"), [("wr0ng-word", "refuses the password"), (None, "wants a password")]
)
def test_wrong_password_is_not_shown(
    postgresql: SharedPostgresServer, name: str, password: str | None, message: str
) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(postgresql.url(name, GUEST_ROLE, password))
    assert "wr0ng-word" not in str(caught.value)
    assert "~/.pgpass" in str(caught.value)


def test_unknown_database_or_user_is_reported(postgresql: SharedPostgresServer, name: str) -> None:
    with pytest.raises(StoreError, match=r"no such database(.|\n)*CREATE DATABASE"):
        Store.open(postgresql.url("nowhere"))
    with pytest.raises(StoreError, match=r"not know this user(.|\n)*CREATE ROLE"):
        Store.open(postgresql.url(name, "nobody-here"))


def test_missing_create_permission_is_reported(
    postgresql: SharedPostgresServer, name: str, url: str
) -> None:
    as_guest = postgresql.guest_url(name)
    with pytest.raises(StoreError, match=r"may not make tables(.|\n)*GRANT CREATE") as caught:
        Store.open(as_guest)
    assert GUEST_PASSWORD not in str(caught.value)
    with pytest.raises(NothingToDoError, match="search_path"):
        Store.open(as_guest, create=False)

    with Store.open(url) as store:
        store.add([make_measurement()])
    postgresql.grant_reading(name)
    with Store.open(as_guest) as store:
        assert len(list(store.measurements(EVERYTHING))) == 1, "who may read, reads"
        with pytest.raises(StoreError, match=r"lacks a right.*SQLSTATE 42501.*\n.*INSERT"):
            store.add([make_measurement(position=2)])


def test_read_only_default_of_a_database_is_obeyed(
    url: str, name: str, direct: psycopg.Connection
) -> None:
    Store.open(url).close()
    direct.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with Store.open(url, create=False) as store:
        assert not list(store.measurements(EVERYTHING))
        with pytest.raises(StoreError, match=r"may not be written(.|\n)*switched off"):
            store.add([make_measurement()])


def test_old_server_and_narrow_encoding_are_refused(
    postgresql: SharedPostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = postgresql.make_database(encoding="LATIN1")
    with pytest.raises(StoreError, match=r"encoding is LATIN1(.|\n)*UTF8"):
        Store.open(postgresql.url(narrow))
    postgresql.drop_database(narrow)
    with pytest.raises(StoreError, match=r"rounds the numbers(.|\n)*extra_float_digits = 1"):
        Store.open(f"{url}&options=-cextra_float_digits%3D0")
    monkeypatch.setattr(backend, "MIN_POSTGRESQL_VERSION", (99,))
    for act in (Store.open, upgrade_database):
        with pytest.raises(StoreError, match=r"PostgreSQL \d+\.\d+; 99 or later"):
            act(url)


# psycopg warns of a cursor left open, which cannot be closed on a lost connection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_lost_connection_is_reported(postgresql: SharedPostgresServer, name: str, url: str) -> None:
    with Store.open(url) as store:
        store.add([make_measurement()])

        def cut_while_read() -> None:
            with store.snapshot() as snapshot:
                assert postgresql.end_connections(name) >= 1
                list(snapshot.measurements(EVERYTHING))

        with pytest.raises(StoreError, match=r"was lost(.|\n)*intact"):
            cut_while_read()

        def cut_after(count: int) -> Iterator[object]:
            for position in range(2, 1000):
                if position == count:
                    postgresql.end_connections(name)
                yield make_measurement(position=position)

        # The interrupted batch is written on a new connection.
        assert store.add(cut_after(700)).new == 998  # type: ignore[arg-type]
        assert store.add(make_measurement(position=p) for p in range(1, 1000)) == AddResult(0, 999)


def test_restarted_server_is_used_again(postgresql: SharedPostgresServer, url: str) -> None:
    with Store.open(url) as store:
        store.add([make_measurement()])
        postgresql.stop()
        with pytest.raises(StoreError, match=r"does not answer.*\n.*Check that it runs") as caught:
            store.add([make_measurement(position=2)])
        assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
        postgresql.start()
        assert store.add(make_measurement(position=p) for p in (1, 2)) == AddResult(1, 1)


def test_longest_names_fit_indexes(store: Store) -> None:
    # Compressible text would fit in any case; each of these characters takes four bytes.
    random = Random(1)
    long: dict[str, Any] = {
        metric.name: "".join(chr(random.randrange(0x10000, 0x20000)) for _ in range(length))
        for metric in CATALOGUE
        if metric.type == "text"
        and not metric.choices
        and metric.name != "variant"
        and (length := min(metric.max_length, MAX_TEXT))
    }
    store.add([make_measurement(**long)])
    (row,) = store.measurements(EVERYTHING)
    assert {name: row[name] for name in long} == long


def test_search_path_schema_is_used(
    postgresql: SharedPostgresServer, url: str, direct: psycopg.Connection, tmp_path: Path
) -> None:
    direct.execute("CREATE TABLE recipes (cake TEXT)")
    direct.execute("CREATE SCHEMA hammer")
    with Store.open(f"{url}&options=-csearch_path%3Dhammer") as store:
        store.add([make_measurement()])
        assert export_file(store, EVERYTHING, tmp_path / "r.csv", software_dir=tmp_path) == 1
    assert direct.execute("SELECT count(*) FROM hammer.measurement").fetchone() == (1,)


def test_lost_connection_leaves_no_file(
    store: Store, postgresql: SharedPostgresServer, write: WriteExport, tmp_path: Path, name: str
) -> None:
    # This is more than driver and socket buffer.
    store.add(make_measurement(job=str(n), log_excerpt=f"{n:05}" * 8000) for n in range(1500))

    def cut(_done: int, _note: str = "") -> None:
        postgresql.end_connections(name)

    with pytest.raises(StoreError, match=r"was lost(.|\n)*intact"):
        write(tmp_path / "results.parquet", step=cut)
    assert not [p for p in tmp_path.iterdir() if "parquet" in p.name]


def test_copy_onto_other_address_of_source_is_refused(source: str, url: str) -> None:
    copy_database(source, url, bars=no_progress)
    with pytest.raises(ConfigError, match="the same database"):
        copy_database(url, f"{url}&options=-cdatestyle%3DGerman", bars=no_progress)
