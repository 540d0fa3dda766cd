"""Database engine and transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from treehammer.errors import ConfigError
from treehammer.optional_packages import explain_missing_extra
from treehammer.sql.engine import database_errors
from treehammer.sql.engine.backends import backend_of
from treehammer.sql.engine.backends.generic import ACCESS_OPTION
from treehammer.sql.engine.database_errors import translate_errors
from treehammer.sql.engine.query_limits import make_cancellable


def parse_url(text: str) -> URL:
    """Parse a database URL.

    Raises:
        ConfigError: the text is not a URL, or no driver supports its database.
    """
    try:
        url = make_url(text)
        if url.drivername == "postgres":
            url = url.set(drivername="postgresql")
        url = backend_of(url).with_driver(url)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(
            f"cannot understand the database's URL ({error})",
            where="database",
            hint="Give one like sqlite:////home/me/results.db, postgresql://me@host/results or "
            "oracle://me:word@host/?service_name=results.",
        ) from error
    return url


def make_engine(url: URL) -> Engine:
    """Create an engine for :func:`read_transaction` and :func:`write_transaction`.

    Raises:
        MissingExtraError, ConfigError: the driver for this database is not installed.
    """
    try:
        with explain_missing_extra():
            engine = backend_of(url).create_engine(url)
    except ImportError as error:
        raise ConfigError(
            f"the driver for {url.drivername} is not installed ({error})", where="database"
        ) from error
    make_cancellable(engine)
    return engine


def require_usable_server(engine: Engine) -> None:
    """Refuse a server that cannot fulfill the guarantees of the store.

    Raises:
        StoreError: the server is too old, or its character set cannot hold every text.
    """
    with read_transaction(engine) as connection:
        backend_of(engine).require_usable_server(connection)


def enable_wal(engine: Engine) -> None:
    """Enable SQLite's write-ahead log: one writer beside any number of readers. Persistent."""
    if engine.dialect.name != "sqlite":
        return
    deadline = time.monotonic() + database_errors.BUSY_SECONDS
    with translate_errors(engine.url), closing(engine.raw_connection()) as connection:
        while True:
            try:
                connection.cursor().execute("PRAGMA journal_mode=WAL").close()
                return
            except sqlite3.OperationalError as error:
                # SQLite does not wait here for another process that enables WAL as well.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def read_clock(connection: Connection) -> int:
    """Return the time of the database's clock, microseconds since 1970 UTC."""
    return backend_of(connection.engine).read_clock(connection)


@contextmanager
def read_transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that sees one state of the database throughout."""
    with translate_errors(engine.url), engine.connect() as plain:
        connection = plain.execution_options(**backend_of(engine).reading_options)
        with connection.begin():
            yield connection


def measure_database(engine: Engine) -> int | None:
    """Return the bytes that a database takes on disk; None if they are unknown.

    Raises:
        StoreError: the database cannot be read.
    """
    with read_transaction(engine) as connection:
        return backend_of(engine).measure_bytes(connection)


@contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """Open an exclusive write transaction, committed at the end or rolled back on error."""
    options = {ACCESS_OPTION: "write", **backend_of(engine).writing_options}
    with translate_errors(engine.url), engine.connect() as plain:
        connection = plain.execution_options(**options)
        with connection.begin():
            yield connection


@contextmanager
def alter_transaction(engine: Engine) -> Iterator[Connection]:
    """Open a write transaction for schema changes; integrity is checked at the end.

    Oracle commits each schema change immediately.
    """
    backend = backend_of(engine)
    with (
        translate_errors(engine.url),
        engine.connect() as plain,
        backend.altering(plain) as connection,
        connection.begin(),
    ):
        yield connection
        backend.require_integrity(connection)


def require_integrity(connection: Connection) -> None:
    """Check every page, index and reference of an SQLite file.

    Other databases check themselves.

    Raises:
        StoreError: the file is damaged.
    """
    backend_of(connection.engine).require_integrity(connection)
