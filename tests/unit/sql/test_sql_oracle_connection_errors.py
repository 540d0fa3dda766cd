"""Remedies for connection errors of the real python-oracledb.

A local socket sends the few bytes with which Oracle's listener refuses a client.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import oracledb
import pytest
import sqlalchemy as sa

from treehammer.errors import ConfigError, StoreError
from treehammer.sql.engine import error_hints
from treehammer.sql.engine.backend import build_store_error
from treehammer.sql.engine.database_engine import make_engine, parse_url
from treehammer.sql.write.store import Store

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
