"""Remedies for errors of PostgreSQL servers and connection poolers."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from treehammer.errors import ConfigError
from treehammer.sql.engine.backend import build_store_error, display_url
from treehammer.sql.engine.database_engine import backend_of, parse_url
from treehammer.sql.engine.postgresql_backend import libpq_connection_string

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
