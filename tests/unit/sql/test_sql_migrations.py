"""Migrations, unusable databases and the engine: remedies for errors, Ctrl-C, compiled statements."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import oracledb
import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement
from quick_databases import NEXT_REVISION, next_revision, run_migrations  # noqa: F401 - a fixture
from sqlalchemy.engine import Engine
from store_helpers import limit_file_sizes

from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.core.measurement_columns import ALL_COLUMNS, DIMENSIONS, PACKED_COLUMNS
from treehammer.sql.engine import error_hints
from treehammer.sql.engine.backend import (
    build_store_error,
    display_url,
)
from treehammer.sql.engine.database_engine import (
    alter_transaction,
    backend_of,
    make_engine,
    parse_url,
)
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    Store.open(url).close()
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def test_catalogue_columns_are_stored_once(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    places = [
        column["name"]
        for table in ("measurement", *(dimension.name for dimension in DIMENSIONS))
        for column in inspector.get_columns(table)
    ]
    keys = [dimension.key for dimension in DIMENSIONS]
    others = ["passes", *keys, *("id" for _ in DIMENSIONS)]
    assert sorted([*places, *PACKED_COLUMNS]) == sorted([*ALL_COLUMNS, *others])
    assert {metric.name for metric in CATALOGUE if metric.type == "floats"} == set(PACKED_COLUMNS)


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (
            "SELECT subject_id, kind, failure_class, plausible, count(*) FROM measurement "
            "WHERE campaign_id = 'c' GROUP BY 1, 2, 3, 4",
            "ix_measurement_counts",
        ),
        (
            "SELECT subject_id, avg(eff_job) FROM measurement WHERE day = 20260101 AND plausible "
            "AND kind = 'timed' GROUP BY 1",
            "ix_measurement_day",
        ),
        (
            "SELECT started_us, cpu_per_event_s FROM measurement WHERE subject_id IN "
            "(SELECT id FROM subject WHERE series = 's') AND plausible AND failure_class IS NULL",
            "ix_measurement_subject",
        ),
    ],
)
def test_common_queries_use_covering_index(engine: sa.Engine, query: str, index: str) -> None:
    with engine.connect() as connection:
        plan = str(connection.execute(sa.text(f"EXPLAIN QUERY PLAN {query}")).all())
    assert f"COVERING INDEX {index}" in plan


def test_listings_need_no_sorting(engine: sa.Engine) -> None:
    query = (
        "SELECT * FROM measurement WHERE campaign_id = 'c' "
        "ORDER BY campaign_id, job_id, attempt, round, position, measurement_id"
    )
    with engine.connect() as connection:
        plan = str(connection.execute(sa.text(f"EXPLAIN QUERY PLAN {query}")).all())
    assert "TEMP B-TREE" not in plan


def test_upgrade_keeps_rows_and_backup(url: str, request: pytest.FixtureRequest) -> None:
    with Store.open(url) as store:
        store.add([make_measurement(extras={"hits": 1})])
        before = list(store.measurements(Selection()))
    request.getfixturevalue("next_revision")
    backup = upgrade_database(url)
    assert upgrade_database(url) is None
    assert backup is not None
    for file in (Path(url.removeprefix("sqlite:///")), backup):
        connection = sqlite3.connect(file)
        assert connection.execute("SELECT count(*) FROM extra").fetchone() == (1,)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(measurement)")]
        assert ("later" in columns) == (file != backup)
        connection.close()
    with Store.open(url) as store:
        assert list(store.measurements(Selection())) == before
    assert check_database(url)["measurement"] == 1


def test_backup_has_permissions_of_database(
    url: str, engine: sa.Engine, request: pytest.FixtureRequest
) -> None:
    file = Path(url.removeprefix("sqlite:///"))
    file.chmod(0o600)
    request.getfixturevalue("next_revision")
    backup = upgrade_database(url)
    assert backup is not None
    assert backup.stat().st_mode & 0o777 == 0o600


def test_incomplete_backup_is_deleted(
    url: str, engine: sa.Engine, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("next_revision")
    file = Path(url.removeprefix("sqlite:///"))
    with limit_file_sizes(8192), pytest.raises(StoreError):
        upgrade_database(url)
    assert not list(file.parent.glob("*.bak*"))


def test_newer_database_is_refused(url: str, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0099'"))
    for act in (Store.open, upgrade_database, check_database):
        with pytest.raises(StoreError, match="newer Treehammer"):
            act(url)


def test_upgrade_requires_database(url: str) -> None:
    with pytest.raises(NothingToDoError):
        upgrade_database(url)


URL = parse_url(
    "postgresql://me@db.example.org:5433/results?sslmode=verify-full&sslrootcert=/etc/ca.pem"
    "&passfile=/home/me/passwords&options=-csearch_path%3Dhammer"
)
FAILED = 'connection to server at "10.0.0.1", port 5433 failed:'


# Messages of libpq 18, PostgreSQL 17 and PgBouncer 1.24.
@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        (
            f'{FAILED} root certificate file "/etc/ca.pem" does not exist',
            "nothing to know the server's certificate by",
            "sslrootcert=system",
        ),
        (f"{FAILED} fe_sendauth: no password supplied", "wants a password", "passfile="),
        ('prepared statement "_pg3_0" already exists', "mixes up", "prepare_threshold=none"),
        (f"{FAILED} FATAL: no such database: results", "no such database", "[databases]"),
    ],
)
def test_errors_have_remedies(said: str, message: str, hint: str) -> None:
    error = build_store_error(URL, said)
    assert message in error.message
    assert hint in error.hint


def test_display_url_omits_connection_options() -> None:
    assert (
        display_url(URL)
        == "postgresql://me@db.example.org:5433/results?options=-csearch_path%3Dhammer"
    )


def test_prepared_statements_can_be_disabled() -> None:
    url = parse_url("postgresql://me@host/results?prepare_threshold=none")
    engine = backend_of(url).create_engine(url)
    given: dict[str, object] = {}

    @sa.event.listens_for(engine, "do_connect")
    def look(
        _dialect: object, _record: object, _words: object, arguments: dict[str, object]
    ) -> None:
        given.update(arguments)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        engine.connect()
    assert given["prepare_threshold"] is None
    with pytest.raises(ConfigError, match="'none' or left out"):
        parse_url("postgresql://me@host/results?prepare_threshold=5")


Answer = Callable[[bytes | None], int]


@pytest.fixture
def listener() -> Iterator[Answer]:
    """Start a server that answers with these bytes or hangs up; return its port."""
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes | None) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        sockets.append(server)

        def serve() -> None:
            try:
                client, _ = server.accept()
            except OSError:  # no client connected
                return
            with client:
                client.recv(65536)
                if answer is not None:
                    client.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return int(server.getsockname()[1])

    yield start
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)  # wakes a thread blocked in accept
        each.close()
    for thread in threads:
        thread.join(10)


def refusal(code: int) -> bytes:
    """Build a TNS packet of type 4, REFUSE."""
    text = f"(DESCRIPTION=(ERR={code})(ERROR_STACK=(ERROR=(CODE={code})(EMFI=4))))".encode()
    body = bytes([0, 0]) + struct.pack(">H", len(text)) + text
    return struct.pack(">HHBBH", 8 + len(body), 0, 4, 0, 0) + body


@pytest.mark.parametrize(
    ("answer", "database", "said"),
    [
        (refusal(12514), "?service_name=nowhere", r"no service of this name(.|\n)*lsnrctl"),
        (refusal(12505), "XE", r"no database of this SID(.|\n)*\?service_name=NAME"),
        (refusal(12516), "?service_name=full", "no connection left"),
        (None, "?service_name=gone", "does not answer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "?service_name=web", "does not answer"),
    ],
)
def test_listener_errors_have_remedies(
    listener: Answer, answer: bytes | None, database: str, said: str
) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        Store.open(f"oracle://me:s3cret-word@127.0.0.1:{listener(answer)}/{database}")
    assert "s3cret-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("oracle://me:x@127.0.0.1:1/?service_name=y", "does not answer"),
        ("oracle://me:x@no-such-host.invalid/?service_name=y", "does not answer"),
        ("oracle://me:x@some_alias", r"names no database(.|\n)*service_name"),
        ("oracle://me@127.0.0.1:1/?service_name=y", "refuses the user's name or password"),
        ("oracle://127.0.0.1:1/?service_name=y", "refuses the user's name or password"),
    ],
)
def test_unreachable_url_is_reported(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        Store.open(url)


def test_driver_cannot_be_chosen() -> None:
    assert parse_url("oracle://me@host/?service_name=x").drivername == "oracle+oracledb"
    with pytest.raises(ConfigError, match="cannot understand"):
        parse_url("oracle+none://me@host")


def test_session_settings_of_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []

    def connect(**parameters: object) -> None:
        given.append(parameters)
        raise oracledb.OperationalError("none here")

    monkeypatch.setattr(oracledb, "connect", connect)
    for more in ("", "&tcp_connect_timeout=3&program=mine"):
        engine = make_engine(parse_url(f"oracle://me:x@host:1522/?service_name=y{more}"))
        with pytest.raises(sa.exc.OperationalError):
            engine.connect()
    assert given[0]["tcp_connect_timeout"] == 10
    assert given[0]["program"] == "treehammer"
    assert "SERVICE_NAME=y" in str(given[0]["dsn"])
    assert "PORT=1522" in str(given[0]["dsn"])
    assert (given[1]["program"], given[1]["tcp_connect_timeout"]) == ("mine", "3")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("ORA-01017: invalid username/password; logon denied", "refuses the user's name"),
        ("ORA-00942: table or view does not exist", "a table is not there"),
        ("ORA-01653: unable to extend table HAMMER.MEASUREMENT", "no room left"),
        ("ORA-30006: resource busy; acquire with WAIT timeout expired", "another process"),
        ("ORA-03113: end-of-file on communication channel", "was lost"),
        ("DPY-4011: the database or network closed the connection", "was lost"),
        ("ORA-28001: the password has expired", "expired"),
    ],
)
def test_server_errors_have_remedies(code: str, said: str) -> None:
    error = build_store_error(parse_url("oracle://me:x@host/?service_name=y"), code)
    assert said in error.message
    assert code.partition(":")[0] in error.message
    assert error.hint


def test_each_error_code_has_one_meaning() -> None:
    """No pattern is hidden by an earlier one."""
    for sign, message, _ in error_hints.ERROR_HINTS["oracle"]:
        error = build_store_error(
            parse_url("oracle://me@host/?service_name=y"), f"{sign.upper()}: said"
        )
        assert error.message.startswith(message), sign


def interrupt_statement(engine: Engine) -> None:
    with alter_transaction(engine) as connection:
        connection.invalidate()  # as SQLAlchemy does when a statement is interrupted
        raise KeyboardInterrupt


def test_interrupt_passes_through_failing_cleanup() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupt_statement(make_engine(parse_url("sqlite://")))


def test_error_after_interrupt_is_reported() -> None:
    engine = make_engine(parse_url("sqlite://"))
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(StoreError), alter_transaction(engine) as connection:
            connection.exec_driver_sql("SELECT * FROM missing")
