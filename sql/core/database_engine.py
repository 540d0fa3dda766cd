"""How the database is reached: the engine and its transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from treehammer.errors import ConfigError
from treehammer.optional_packages import explain_missing_extra
from treehammer.sql.core import database_errors
from treehammer.sql.core.backends import backend_of
from treehammer.sql.core.backends.generic import ACCESS_OPTION
from treehammer.sql.core.database_errors import translate_errors


def parse_url(text: str) -> URL:
    """Read a database URL.

    Raises:
        ConfigError: it is no URL, or of a database there is no driver for.
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
    """An engine whose transactions are what :func:`reading` and :func:`writing` promise.

    Raises:
        MissingExtraError, ConfigError: the driver for this database is not installed.
    """
    try:
        with explain_missing_extra():
            return backend_of(url).create_engine(url)
    except ImportError as error:
        raise ConfigError(
            f"the driver for {url.drivername} is not installed ({error})", where="database"
        ) from error


def require_usable_server(engine: Engine) -> None:
    """Refuse a server that cannot keep what the store promises.

    Raises:
        StoreError: it is too old, or its database cannot hold every text.
    """
    with read_transaction(engine) as connection:
        backend_of(engine).require_usable_server(connection)


def enable_wal(engine: Engine) -> None:
    """Let one SQLite writer and any number of readers work at once; the file remembers it."""
    if engine.dialect.name != "sqlite":
        return
    deadline = time.monotonic() + database_errors.BUSY_SECONDS
    with translate_errors(engine.url), closing(engine.raw_connection()) as connection:
        while True:
            try:
                connection.cursor().execute("PRAGMA journal_mode=WAL").close()
                return
            except sqlite3.OperationalError as error:
                # Here SQLite does not wait by itself for another that is just doing the same.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


@contextmanager
def read_transaction(engine: Engine) -> Iterator[Connection]:
    """A connection inside a transaction that sees one state of the database throughout."""
    with translate_errors(engine.url), engine.connect() as plain:
        connection = plain.execution_options(**backend_of(engine).reading_options)
        with connection.begin():
            yield connection


@contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """A connection inside a transaction that alone may write; committed at the end or undone."""
    options = {ACCESS_OPTION: "write", **backend_of(engine).writing_options}
    with translate_errors(engine.url), engine.connect() as plain:
        connection = plain.execution_options(**options)
        with connection.begin():
            yield connection


@contextmanager
def alter_transaction(engine: Engine) -> Iterator[Connection]:
    """Like :func:`writing`, for changes of the tables themselves; all is checked at the end.

    On Oracle each of the changes is committed when it is made.
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
    """Have SQLite check every page, index and reference of the file.

    Raises:
        StoreError: something is wrong; other databases check themselves.
    """
    backend_of(connection.engine).require_integrity(connection)
