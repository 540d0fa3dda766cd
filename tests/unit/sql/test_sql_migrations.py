"""Migrations, unusable databases and the engine: remedies for errors, Ctrl-C, compiled statements."""

from __future__ import annotations

import socket
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import oracledb
import pytest
import sqlalchemy as sa
from local_servers import serve_tcp
from measurement_factory import make_measurement
from quick_databases import NEXT_REVISION, next_revision, run_migrations  # noqa: F401 - a fixture
from sqlalchemy.engine import Engine
from store_helpers import limit_file_sizes

from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.errors import ConfigError, StoreError
from treehammer.sql.core.measurement_columns import ALL_COLUMNS, DIMENSIONS, PACKED_COLUMNS
from treehammer.sql.engine import database_backup, error_hints
from treehammer.sql.engine.backend import SQLiteBackend, build_store_error, display_url
from treehammer.sql.engine.database_engine import (
    alter_transaction,
    backend_of,
    make_engine,
    parse_url,
)
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.engine.oracle_backend import is_already_applied
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
    other_columns = ["passes", *keys, *("id" for _ in DIMENSIONS)]
    assert sorted([*places, *PACKED_COLUMNS]) == sorted([*ALL_COLUMNS, *other_columns])
    assert {metric.name for metric in CATALOGUE if metric.type == "floats"} == set(PACKED_COLUMNS)


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


def test_irreversible_upgrade_requires_a_backup(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite stands in for Oracle, which commits each change of a table."""
    monkeypatch.setattr(SQLiteBackend, "transactional_ddl", False)
    Store.open(url).close()
    request.getfixturevalue("next_revision")
    with pytest.raises(ConfigError, match=r"cannot undo(.|\n)*expdp(.|\n)*--backed-up"):
        upgrade_database(url)
    assert upgrade_database(url, backed_up=True) is None
    assert check_database(url)["measurement"] == 0


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


URL = parse_url(
    "postgresql://me@db.example.org:5433/results?sslmode=verify-full&sslrootcert=/etc/ca.pem"
    "&passfile=/home/me/passwords&options=-csearch_path%3Dhammer"
)
FAILED = 'connection to server at "10.0.0.1", port 5433 failed:'


ORACLE_URL = parse_url("oracle://me:x@host/?service_name=y")


# Messages of libpq 18, PostgreSQL 17, PgBouncer 1.24 and Oracle.
@pytest.mark.parametrize(
    ("url", "reason", "message", "hint"),
    [
        (
            URL,
            f'{FAILED} root certificate file "/etc/ca.pem" does not exist',
            "nothing to know the server's certificate by",
            "sslrootcert=system",
        ),
        (
            URL,
            "error: unsupported version (1.16) in file header",
            "older than",
            "postgresql-client",
        ),
        (URL, f"{FAILED} fe_sendauth: no password supplied", "wants a password", "passfile="),
        (URL, f"{FAILED} FATAL: no such database: results", "no such database", "[databases]"),
        (URL, f'{FAILED} FATAL: too many connections for role "me"', "no connection", "raised"),
        (URL, f'{FAILED} FATAL: permission denied for database "r"', "lacks a right", "CONNECT"),
        (
            URL,
            f'{FAILED} FATAL: pg_hba.conf rejects database "r"',
            "not let this user in",
            "who may enter",
        ),
        (URL, "canceling statement due to conflict with recovery", "standby", "_standby_"),
        (URL, "temporäre Datei zu groß (SQLSTATE 53400)", "by a limit", "temp_file_limit"),
        (URL, "must be owner of table campaign", "or change them", "owns"),
    ],
)
def test_errors_have_remedies(url: sa.URL, reason: str, message: str, hint: str) -> None:
    error = build_store_error(url, reason)
    assert message in error.message
    assert error.hint
    assert hint in error.hint


@pytest.mark.parametrize(
    ("url", "display"),
    [
        (URL, "postgresql://me@db.example.org:5433/results?options=-csearch_path%3Dhammer"),
        (parse_url("postgresql://me:secret@host/db"), "postgresql://me:***@host/db"),
        (
            parse_url("postgresql://me@host/db?password=secret&sslpassword=secret"),
            "postgresql://me@host/db?password=%2A%2A%2A&sslpassword=%2A%2A%2A",
        ),
    ],
)
def test_displayed_url_omits_passwords_and_connection_options(url: sa.URL, display: str) -> None:
    assert display_url(url) == display


def test_statements_are_never_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    url = parse_url("postgresql://me@host/results")
    given: dict[str, object] = {}

    def look(*_: object, **arguments: object) -> None:
        given.update(arguments)
        raise ConnectionError

    monkeypatch.setattr("psycopg.connect", look)
    with pytest.raises(ConnectionError):
        backend_of(url).create_engine(url).connect()
    assert given["prepare_threshold"] is None


def refusal(code: int) -> bytes:
    """Build a TNS packet of type 4, REFUSE."""
    text = f"(DESCRIPTION=(ERR={code})(ERROR_STACK=(ERROR=(CODE={code})(EMFI=4))))".encode()
    body = bytes([0, 0]) + struct.pack(">H", len(text)) + text
    return struct.pack(">HHBBH", 8 + len(body), 0, 4, 0, 0) + body


@pytest.mark.parametrize(
    ("answer", "database", "reason"),
    [
        (refusal(12514), "?service_name=nowhere", r"no service of this server(.|\n)*lsnrctl"),
        (b"", "?service_name=gone", "does not answer"),
    ],
)
def test_listener_errors_have_remedies(answer: bytes, database: str, reason: str) -> None:
    def respond(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with serve_tcp(respond) as port, pytest.raises(StoreError, match=reason) as caught:
        Store.open(f"oracle://me:s3cret-word@127.0.0.1:{port}/{database}")
    assert "s3cret-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me@no-such-host.invalid/results", "does not answer"),
        ("oracle://me:x@127.0.0.1:1/?service_name=y", "does not answer"),
        ("oracle://me:x@no-such-host.invalid/?service_name=y", "does not answer"),
        ("oracle://me@127.0.0.1:1/?service_name=y", "refuses the user's name or password"),
    ],
)
def test_unreachable_url_is_reported(url: str, reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        Store.open(url)


def test_driver_cannot_be_chosen() -> None:
    assert parse_url("oracle://me@host/?service_name=x").drivername == "oracle+oracledb"
    for text in ("oracle+none://me@host", "postgresql://host:port/db", "postgresql://me:a@b@host/"):
        with pytest.raises(ConfigError, match="cannot understand"):
            parse_url(text)


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


def test_each_error_code_has_one_meaning() -> None:
    """No pattern is hidden by an earlier one."""
    for signs, message, _ in error_hints.ERROR_HINTS["oracle"]:
        for sign in signs.split("|"):
            error = build_store_error(ORACLE_URL, f"{sign.upper()}: said")
            assert error.message.startswith(message), sign


@pytest.mark.parametrize(
    ("statement", "message", "applied"),
    [
        ("\nCREATE TABLE a (b NUMBER)", "ORA-00955: name is already used", True),
        ("ALTER TABLE a ADD b NUMBER", "ORA-01430: column being added", True),
        ("ALTER TABLE a DROP COLUMN b", "ORA-00904: invalid identifier", True),
        ("ALTER TABLE a MODIFY b NOT NULL", "ORA-01442: already NOT NULL", True),
        ("ALTER TABLE a ADD b NUMBER", "ORA-00904: invalid identifier", False),
        ("ALTER TABLE a MODIFY b NUMBER", "ORA-00904: invalid identifier", False),
        ("CREATE TABLE a (b NUMBER)", "ORA-01653: unable to extend", False),
        ("UPDATE a SET b = 1", "ORA-00904: invalid identifier", False),
    ],
)
def test_only_errors_of_the_same_change_show_that_it_was_applied(
    statement: str, message: str, applied: bool
) -> None:
    assert is_already_applied(statement, message) is applied


def interrupt_statement(engine: Engine) -> None:
    with alter_transaction(engine) as connection:
        connection.invalidate()  # as SQLAlchemy does when a statement is interrupted
        raise KeyboardInterrupt


def test_interrupt_passes_through_failing_cleanup() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupt_statement(make_engine(parse_url("sqlite://")))


def test_interrupt_passes_through_an_interrupted_program() -> None:
    def interrupt_script() -> Iterator[bytes]:
        time.sleep(0.3)  # until the program has ended
        yield b"BEGIN;"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database_backup._run_tool(URL, ["true"], interrupt_script())


def test_error_after_interrupt_is_reported() -> None:
    engine = make_engine(parse_url("sqlite://"))
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(StoreError), alter_transaction(engine) as connection:
            connection.exec_driver_sql("SELECT * FROM missing")
    engine.dispose()
