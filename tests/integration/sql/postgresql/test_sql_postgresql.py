"""PostgreSQL: errors with their remedies, the schema, exports and copies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
import uproot
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from measurement_factory import HOSTILE_TEXTS, full_measurement, make_measurement
from postgres_fixture import GUEST_PASSWORD, GUEST_ROLE, SharedPostgresServer
from pyarrow import parquet
from quick_databases import NEXT_REVISION, next_revision, run_migrations  # noqa: F401 - a fixture
from sqlalchemy.engine import make_url
from store_helpers import (
    WriteExport,
    check_corruption_is_refused,
    install_corrupting_trigger,
    read_all_tables,
)

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import CATALOGUE, MAX_TEXT
from treehammer.errors import ConfigError, ExitCode, NothingToDoError, StoreError
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine import backend, database_engine
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_stream
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.transfer.export import export_file
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress

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


@pytest.fixture
def down(postgresql: SharedPostgresServer) -> Iterator[SharedPostgresServer]:
    postgresql.stop()
    yield postgresql
    postgresql.start()


def test_unreachable_server_is_reported(url: str, down: SharedPostgresServer) -> None:
    with pytest.raises(StoreError, match=r"does not answer.*\n.*Check that it runs") as caught:
        Store.open(url)
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE


def test_unknown_host_is_reported() -> None:
    with pytest.raises(StoreError, match="does not answer"):
        Store.open("postgresql://me@no-such-host.invalid/results")


@pytest.mark.parametrize(
    ("password", "said"), [("wr0ng-word", "refuses the password"), (None, "wants a password")]
)
def test_wrong_password_is_not_shown(
    postgresql: SharedPostgresServer, name: str, password: str | None, said: str
) -> None:
    with pytest.raises(StoreError, match=said) as caught:
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
    as_guest = postgresql.url(name, GUEST_ROLE, GUEST_PASSWORD)
    with pytest.raises(StoreError, match=r"may not make tables(.|\n)*GRANT CREATE") as caught:
        Store.open(as_guest)
    assert GUEST_PASSWORD not in str(caught.value)
    with pytest.raises(NothingToDoError):
        Store.open(as_guest, create=False)

    with Store.open(url) as store:
        store.add([make_measurement()])
    postgresql.grant_reading(name)
    with Store.open(as_guest) as store:
        assert len(list(store.measurements(EVERYTHING))) == 1, "who may read, reads"
        with pytest.raises(StoreError, match=r"lacks a right(.|\n)*INSERT"):
            store.add([make_measurement(position=2)])


def test_old_server_and_narrow_encoding_are_refused(
    postgresql: SharedPostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = postgresql.make_database(encoding="LATIN1")
    with pytest.raises(StoreError, match=r"encoding is LATIN1(.|\n)*UTF8"):
        Store.open(postgresql.url(narrow))
    postgresql.drop_database(narrow)
    monkeypatch.setattr(backend, "MIN_POSTGRESQL_VERSION", (99,))
    for act in (Store.open, upgrade_database):
        with pytest.raises(StoreError, match=r"PostgreSQL \d+\.\d+; 99 or later"):
            act(url)


def test_foreign_database_is_refused(url: str, direct: psycopg.Connection) -> None:
    direct.execute("CREATE TABLE recipes (cake TEXT)")
    with pytest.raises(StoreError, match="other than Treehammer"):
        Store.open(url)


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
        with pytest.raises(StoreError, match="does not answer"):
            store.add([make_measurement(position=2)])
        postgresql.start()
        assert store.add(make_measurement(position=p) for p in (1, 2)) == AddResult(1, 1)


def test_only_writers_wait_for_each_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(url) as store, Store.open(url) as other:
        store.add([make_measurement()])
        monkeypatch.setattr(backend, "BUSY_SECONDS", 0.1)
        with database_engine.write_transaction(other._engine):
            with pytest.raises(StoreError, match="another process"):
                store.add([make_measurement(position=2)])
            assert len(list(store.measurements(EVERYTHING))) == 1
        assert store.add([make_measurement(position=2)]).new == 1


def test_rows_sort_by_code_points(store: Store) -> None:
    jobs = ["b", "a", "B", "_", "é", "Z"]
    store.add(make_measurement(job=job) for job in jobs)
    found = [row["job_id"] for row in store.measurements(EVERYTHING, ["job_id"])]
    assert found == sorted(jobs)


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
        rows = export_file(
            store,
            EVERYTHING,
            tmp_path / "results.csv",
            software_dir=tmp_path,
        )
    assert rows == 1
    found = direct.execute("SELECT count(*) FROM hammer.measurement").fetchone()
    assert found == (1,)


# The schema


@pytest.mark.parametrize("create", [run_migrations, lambda url: Store.open(url).close()])
def test_migrations_and_direct_creation_match_the_schema(
    url: str, create: Callable[[str], None]
) -> None:
    create(url)
    with Store.open(url, create=False) as store, store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_upgrade_is_one_transaction(url: str, store: Store, request: pytest.FixtureRequest) -> None:
    store.add([make_measurement()])
    before = list(store.measurements(EVERYTHING))
    file = request.getfixturevalue("next_revision")
    file.write_text(NEXT_REVISION + '    op.execute("SELECT * FROM no_such_table")\n')

    def columns() -> list[str]:
        return [c["name"] for c in sa.inspect(store._engine).get_columns("measurement")]

    with pytest.raises(StoreError, match="treehammer db upgrade"):
        check_database(url)
    with pytest.raises(StoreError, match="no_such_table"):
        upgrade_database(url)
    assert "later" not in columns()
    file.write_text(NEXT_REVISION)
    assert upgrade_database(url) is None
    assert "later" in columns()
    assert check_database(url)["measurement"] == 1
    assert list(store.measurements(EVERYTHING)) == before


def awkward() -> Iterator[Measurement]:
    whole = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
    # SQLite has no negative zero.
    real = [5e-324, -0.25, 0.1, sys.float_info.max, -sys.float_info.max]
    for place, text in enumerate(HOSTILE_TEXTS):
        extras = {"hits": place / 3} if place % 2 else {"e": place}
        yield make_measurement(job=f"hostile {place}", host=text, log_excerpt=text, extras=extras)
    for place, (number, fraction) in enumerate(zip(whole, real, strict=True)):
        yield make_measurement(
            job="numbers",
            position=place + 1,
            site=["b", "", "B", "a", "é"][place],
            retries=number,
            eff_job=fraction,
            read_latency_hist=[0, 1, 2**53 + 1, 2**63 - 1],
            pass_loop_wall_s=real,
            plausible=bool(place % 2),
        )
    yield from (full_measurement(n) for n in range(7))


@pytest.fixture
def both(store: Store, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Fill SQLite and PostgreSQL with the same rows."""
    with Store.open(f"sqlite:///{tmp_path}/same.db") as other:
        other.add(awkward())
        store.add(reversed([*awkward()]))
        yield other, store


SELECTIONS = [
    Selection(),
    Selection.parse(["campaign"], ["host!=NULL", f"retries>={-(2**63)}"]),
    Selection.parse(["campaign", "it's"], [r"host~*'; DROP*\\*"]),
    Selection.parse(wheres=["host~*%(a)s*"]),
    Selection.parse(wheres=["host~*[red]*"]),
    Selection.parse(wheres=["plausible=true", "eff_job<=0.1"]),
    Selection.parse(wheres=["plausible=no", "site="]),
    Selection.parse(wheres=["eff_job=-1.7976931348623157e308"]),
]


@pytest.mark.parametrize("place", range(len(SELECTIONS)))
def test_export_equals_sqlite_export(
    both: tuple[Store, Store], tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_stream, "BATCH_ROWS", 5)
    selection = SELECTIONS[place]
    if not [*both[0].measurements(selection)]:
        assert not [*both[1].measurements(selection)]
        return
    for suffix in (".parquet", ".csv"):
        files = [tmp_path / f"{number}{suffix}" for number in (0, 1)]
        for store, file in zip(both, files, strict=True):
            assert _write(store, selection, file)
        if suffix == ".csv":
            assert files[0].read_bytes() == files[1].read_bytes()
        else:
            one, two = (parquet.read_table(file) for file in files)
            assert one.equals(two)
            assert one.schema.equals(two.schema, check_metadata=False)


def _write(store: Store, selection: Selection, file: Path, software_dir: Path = Path()) -> int:
    return export_file(
        store,
        selection,
        file,
        software_dir=software_dir,
    )


@pytest.mark.root
def test_tree_equals_sqlite_tree(
    both: tuple[Store, Store], tmp_path: Path, release: Callable[[str], SoftwareRequest]
) -> None:
    software = Path(release("6.40.00").location).parent
    found = []
    for number, store in enumerate(both):
        # A tree cannot hold the values that stand for NULL in it.
        selection = Selection.parse(wheres=[f"retries!={-(2**63)}"])
        file = tmp_path / f"{number}.root"
        assert _write(store, selection, file, software) == len([*awkward()]) - 1
        with uproot.open(file) as opened:
            tree = opened["results"]
            names = tree.keys()
            found.append({name: str(tree[name].array().tolist()) for name in names})
    assert found[0] == found[1]


def test_lost_connection_leaves_no_file(
    store: Store, postgresql: SharedPostgresServer, write: WriteExport, tmp_path: Path, url: str
) -> None:
    # This is more than driver and socket buffer.
    store.add(make_measurement(job=str(n), log_excerpt=f"{n:05}" * 8000) for n in range(1500))
    name = str(make_url(url).database)

    def cut(_done: int, _note: str = "") -> None:
        postgresql.end_connections(name)

    with pytest.raises(StoreError, match=r"was lost(.|\n)*intact"):
        write(tmp_path / "results.parquet", step=cut)
    assert not [p for p in tmp_path.iterdir() if "parquet" in p.name]


def test_reader_with_a_password_exports(
    store: Store, postgresql: SharedPostgresServer, tmp_path: Path, url: str
) -> None:
    store.add([make_measurement()])
    name = str(make_url(url).database)
    postgresql.grant_reading(name)
    with Store.open(postgresql.url(name, GUEST_ROLE, GUEST_PASSWORD), create=False) as as_guest:
        assert _write(as_guest, Selection(), tmp_path / "results.csv") == 1


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
