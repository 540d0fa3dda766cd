"""How the database is reached: the engine, its transactions, and what its errors mean."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from treehammer.errors import ConfigError, StoreError

#: Seconds that a writer waits for another before it gives up.
BUSY_SECONDS = 30.0

# What SQLite says -> what it means and what to do.
_MEANINGS = (
    (
        "locked",
        f"another process held the database for more than {BUSY_SECONDS:.0f} s",
        "Nothing was written. Run the command again when the other one has ended.",
    ),
    (
        "full",
        "there is no room left to write",
        "Free space where the database lies and run the command again; "
        "what was recorded before is intact.",
    ),
    (
        "disk i/o",
        "the disk refused to write or read",
        "Check space, quota and health of the disk, then run the command again; "
        "what was committed before is intact.",
    ),
    (
        "readonly",
        "the database may not be written",
        "Check the permissions of the file and its folder.",
    ),
    (
        "unable to open",
        "the database cannot be opened",
        "Check that its folder exists and is yours to write, or give another with --database.",
    ),
    (
        "malformed",
        "the database is damaged",
        "Put it back from a backup, or move it away and run 'treehammer collect': "
        "the records of jobs stay in the spool.",
    ),
    (
        "not a database",
        "this file is not an SQLite database",
        "Check the path given with --database.",
    ),
)


def parse_url(text: str) -> URL:
    """Read a database URL.

    Raises:
        ConfigError: it is no URL, or of a database there is no driver for.
    """
    try:
        url = make_url(text)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(
            f"cannot understand the database's URL ({error})",
            where="database",
            hint="Give one like sqlite:////home/me/results.db.",
        ) from error
    return url


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite URL; ``None`` for other databases and for one in memory."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def make_engine(url: URL) -> Engine:
    """An engine whose transactions are what :func:`reading` and :func:`writing` promise.

    Raises:
        ConfigError: the driver for this database is not installed.
    """
    try:
        engine = sa.create_engine(url)
    except ImportError as error:
        raise ConfigError(
            f"the driver for {url.drivername} is not installed ({error})", where="database"
        ) from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not begin transactions of its own accord: see _begin_sqlite.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={BUSY_SECONDS * 1000:.0f}",
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
    deadline = time.monotonic() + BUSY_SECONDS
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
    with explained(engine.url), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A connection inside a transaction that alone may write; committed at the end or undone."""
    with explained(engine.url), engine.connect() as plain:
        connection = plain.execution_options(treehammer_write=True)
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


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn errors of the database into one that says what to do.

    Raises:
        StoreError: instead of anything SQLAlchemy or the driver raises.
    """
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise refused(url, said) from error


def refused(url: URL, said: str) -> StoreError:
    """The error for what a database or its driver said."""
    for sign, message, hint in _MEANINGS:
        if sign in said.lower():
            return StoreError(f"{message} ({said})", where=shown(url), hint=hint)
    return StoreError(f"the database refused: {said}", where=shown(url))


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


def shown(url: URL) -> str:
    """The database for people: a path, or the URL without its password."""
    file = sqlite_file(url)
    return str(file) if file else url.render_as_string(hide_password=True)
