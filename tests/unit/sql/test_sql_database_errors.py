"""Database engine: remedies for errors, Ctrl-C in a transaction, compiled statements."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import oracledb
import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine

from treehammer.errors import ConfigError, StoreError
from treehammer.sql.core.schema import measurement
from treehammer.sql.engine import error_hints
from treehammer.sql.engine.backend import (
    build_store_error,
    compile_query,
    compile_statement,
    display_url,
    round_length,
)
from treehammer.sql.engine.database_engine import (
    alter_transaction,
    backend_of,
    make_engine,
    parse_url,
    read_transaction,
)
from treehammer.sql.engine.postgresql_backend import libpq_connection_string
from treehammer.sql.write.store import Store

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
        (
            f"{FAILED} SSL error: certificate verify failed",
            "expired, or is signed by somebody else",
            "clock",
        ),
        (
            f'{FAILED} server certificate for "db" does not match host name "10.0.0.1"',
            "of another host",
            "host in the URL",
        ),
        (
            f"{FAILED} server does not support SSL, but SSL was required",
            "does not speak TLS",
            "sslmode=disable",
        ),
        (f"{FAILED} fe_sendauth: no password supplied", "wants a password", "passfile="),
        ('prepared statement "_pg3_0" already exists', "mixes up", "prepare_threshold=none"),
        ("FATAL: query_wait_timeout server closed the", "no connection for us", "two at once"),
        ("transaction blocks not allowed in statement pooling mode", "no transactions", "session"),
        (
            f"{FAILED} FATAL: unsupported startup parameter in options: search_path",
            "does not pass on",
            "ALTER ROLE",
        ),
        (f"{FAILED} FATAL: no such database: results", "no such database", "[databases]"),
        (
            "server login has been failing, cached error: connect failed (server_login_retry)",
            "does not answer",
            "runs",
        ),
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
    assert "prepare_threshold" not in libpq_connection_string(url)
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
        ("ORA-12541: TNS:no listener", "does not answer"),
        ("ORA-12514: TNS:listener does not currently know of service", "no service"),
        ("ORA-01653: unable to extend table HAMMER.MEASUREMENT", "no room left"),
        ("ORA-01536: space quota exceeded for tablespace 'USERS'", "may use no more room"),
        ("ORA-12899: value too large for column", "longer than its column"),
        ("ORA-01461: can bind a LONG value only for insert", "longer than its column"),
        ("ORA-30006: resource busy; acquire with WAIT timeout expired", "another process"),
        ("ORA-03113: end-of-file on communication channel", "was lost"),
        ("DPY-4011: the database or network closed the connection", "was lost"),
        ("DPY-3010: connections to this database server version are not", "too old"),
        ("ORA-01555: snapshot too old", "less time than reading took"),
        ("ORA-01031: insufficient privileges", "may not do that"),
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


#: Class of the dialect.
SQLITE: Any = SQLiteDialect_pysqlite
_BY_ID_AND_ROUND = sa.select(measurement.c.measurement_id).where(
    measurement.c.measurement_id.in_(sa.bindparam("ids", expanding=True)),
    measurement.c.round == sa.bindparam("round"),
)


@pytest.mark.parametrize(
    ("length", "compiled"), [(0, 1), (1, 1), (2, 2), (3, 4), (500, 512), (512, 512)]
)
def test_lengths_of_lists_are_powers_of_two(length: int, compiled: int) -> None:
    assert round_length(length) == compiled


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_lists_of_any_length_find_their_rows_only(store: Store, count: int) -> None:
    known = [make_measurement(job=str(number)) for number in range(6)]
    store.add(known)
    wanted = [one.id for one in known[:count]]
    engine = store._engine
    with read_transaction(engine) as connection:
        rows = backend_of(engine).fetch_rows(
            connection, _BY_ID_AND_ROUND, {"ids": [*wanted, "nothing"], "round": 1}
        )
        none = backend_of(engine).fetch_rows(
            connection, _BY_ID_AND_ROUND, {"ids": wanted, "round": 2}
        )
    assert sorted(row[0] for row in rows) == sorted(wanted)
    assert not none


def test_similar_lengths_share_one_compiled_query() -> None:
    query = compile_query(_BY_ID_AND_ROUND, 4, SQLITE, "qmark")
    assert query.text.count("?") == 5
    assert query.bind({"ids": ["a", "b", "c"], "round": 1}) == ("a", "b", "c", None, 1)


def test_empty_text_is_stored_as_null() -> None:
    change = (
        sa.update(measurement)
        .where(measurement.c.measurement_id == sa.bindparam("id"))
        .values(slot=sa.bindparam("slot"), plausible=sa.bindparam("good"))
    )
    compiled = compile_statement(change, SQLITE, "qmark")
    (row,) = compiled.bind([{"id": "a", "slot": "", "good": True}])
    assert dict(zip(compiled.names, row, strict=True)) == {
        "id": "a",
        "slot": None,
        "good": True,
    }
