"""How the database is reached: the engine and its transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from treehammer.errors import ConfigError, StoreError
from treehammer.sql import troubles
from treehammer.sql.troubles import explained, shown

#: The oldest PostgreSQL that is accepted; what has been run stands in docs/databases.md.
OLDEST_POSTGRESQL = (13,)
#: Seconds until a server that does not answer is given up, where the URL says nothing else.
CONNECT_SECONDS = 10
#: Held by whoever writes to a PostgreSQL database; any number that nobody else uses.
_WRITER = int.from_bytes(b"treehamm", "big")


def parse_url(text: str) -> URL:
    """Read a database URL.

    Raises:
        ConfigError: it is no URL, or of a database there is no driver for.
    """
    try:
        url = make_url(text)
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(
            f"cannot understand the database's URL ({error})",
            where="database",
            hint="Give one like sqlite:////home/me/results.db or postgresql://me@host/results.",
        ) from error
    return url


def make_engine(url: URL) -> Engine:
    """An engine whose transactions are what :func:`reading` and :func:`writing` promise.

    Raises:
        ConfigError: the driver for this database is not installed.
    """
    try:
        engine = _new_engine(url)
    except ImportError as error:
        raise ConfigError(
            f"the driver for {url.drivername} is not installed ({error})", where="database"
        ) from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "begin", _begin_postgresql)
    return engine


def _new_engine(url: URL) -> Engine:
    if url.get_backend_name() != "postgresql":
        return sa.create_engine(url)
    # A connection that a restart of the server has cut is made anew.
    return sa.create_engine(url, connect_args=_libpq_options(url), pool_pre_ping=True)


def _libpq_options(url: URL) -> dict[str, Any]:
    ours = {
        "application_name": "treehammer",
        "client_encoding": "utf8",
        "connect_timeout": CONNECT_SECONDS,
    }
    return {name: value for name, value in ours.items() if name not in url.query}


def libpq_address(url: URL) -> str:
    """A PostgreSQL URL as the connection string of its C library; it may hold a password."""
    # psycopg takes a sixth of a second to load, which SQLite's users need not pay.
    from psycopg.conninfo import make_conninfo

    _, named = url.get_dialect()().create_connect_args(url)
    return make_conninfo("", **named, **_libpq_options(url))


def require_usable(engine: Engine) -> None:
    """Refuse a server that cannot keep what the store promises.

    Raises:
        StoreError: it is too old, or its database cannot hold every text.
    """
    if engine.dialect.name != "postgresql":
        return
    with reading(engine) as connection:
        version = connection.dialect.server_version_info or ()
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if version < OLDEST_POSTGRESQL:
        raise StoreError(
            f"the server is PostgreSQL {'.'.join(map(str, version))}; "
            f"{OLDEST_POSTGRESQL[0]} or later is needed",
            where=shown(engine.url),
            hint="Use a newer server; pg_upgrade keeps what an old one holds.",
        )
    if encoding != "UTF8":
        raise StoreError(
            f"the database's encoding is {encoding}, which cannot hold every text",
            where=shown(engine.url),
            hint="Make another: CREATE DATABASE NAME ENCODING 'UTF8' TEMPLATE template0.",
        )


def _begin_postgresql(connection: Connection) -> None:
    # As on SQLite there is one writer at a time, who sees all that those before have written.
    if connection.get_execution_options().get("treehammer_write", False):
        wait = f"SET LOCAL lock_timeout = {troubles.BUSY_SECONDS * 1000:.0f}"
        connection.exec_driver_sql(wait)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITER})")


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not begin transactions of its own accord: see _begin_sqlite.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={troubles.BUSY_SECONDS * 1000:.0f}",
        "foreign_keys=ON",
        # With FULL a commit that was answered survives a power cut, also in WAL mode.
        "synchronous=FULL",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock before it reads, so that what it has read stays true until it commits.
    write = connection.get_execution_options().get("treehammer_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def switch_to_wal(engine: Engine) -> None:
    """Let one SQLite writer and any number of readers work at once; the file remembers it."""
    if engine.dialect.name != "sqlite":
        return
    deadline = time.monotonic() + troubles.BUSY_SECONDS
    with explained(engine.url), closing(engine.raw_connection()) as connection:
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
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection inside a transaction that sees one state of the database throughout."""
    with explained(engine.url), engine.connect() as plain:
        connection = plain
        if engine.dialect.name == "postgresql":
            connection = plain.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A connection inside a transaction that alone may write; committed at the end or undone."""
    with explained(engine.url), engine.connect() as plain:
        connection = plain.execution_options(treehammer_write=True)
        if engine.dialect.name == "postgresql":
            # A stricter one would see the state from before it had waited for others.
            connection = connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            yield connection


@contextmanager
def rebuilding(engine: Engine) -> Iterator[Connection]:
    """Like :func:`writing`, for changes of the tables themselves; all is checked at the end."""
    if engine.dialect.name != "sqlite":
        with writing(engine) as connection:
            yield connection
        return
    with explained(engine.url), engine.connect() as plain:
        # SQLite alters a table by copying and dropping it, which references to it would forbid;
        # the pragma has no effect inside a transaction.
        driver: Any = plain.connection.driver_connection
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            connection = plain.execution_options(treehammer_write=True)
            with connection.begin():
                yield connection
                require_whole(connection)
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def require_whole(connection: Connection) -> None:
    """Have SQLite check every page, index and reference of the file.

    Raises:
        StoreError: something is wrong; other databases check themselves.
    """
    if connection.dialect.name != "sqlite":
        return
    problems = [
        str(row[0])
        for row in connection.exec_driver_sql("PRAGMA integrity_check(10)")
        if row[0] != "ok"
    ]
    problems += [
        f"row {row[1]} of {row[0]} refers to nothing in {row[2]}"
        for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
    ]
    if problems:
        raise StoreError(
            f"the database is damaged: {'; '.join(problems[:10])}",
            where=shown(connection.engine.url),
            hint="Put it back from a backup, or move it away and run 'treehammer collect'.",
        )
