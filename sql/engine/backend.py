"""Base class of all database backends, backends of SQLite and PostgreSQL, translation of errors.

Errors of databases become messages with remedies, see :mod:`treehammer.sql.engine.error_hints`.
"""

from __future__ import annotations

import logging
import re
import socket
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from treehammer.config import mask_password
from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.core.measurement_columns import DamagedValueError
from treehammer.sql.engine import error_hints

#: Seconds that a writer waits for another writer before it fails.
BUSY_SECONDS = error_hints.BUSY_SECONDS
#: Driver's setting of prepared statements, which URLs of earlier versions may hold.
PREPARE_OPTION = "prepare_threshold"
# URL parameters that describe the connection rather than the location of the database.
_CONNECTION_OPTIONS = (
    "connect_timeout",
    "passfile",
    PREPARE_OPTION,
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
)
_DATABASE_ERRORS = (
    SQLAlchemyError,
    sqlite3.Error,
    socket.gaierror,
    DamagedValueError,
    UnicodeDecodeError,  # of SQLite's message on a damaged schema
)
#: Connection execution option with the purpose of its transactions.
ACCESS_OPTION = "treehammer_access"
#: Purpose of a transaction: reading (default), writing rows, or changing tables.
AccessMode = Literal["read", "write", "alter"]
#: Default connection timeout in seconds, unless the URL sets one.
CONNECT_TIMEOUT_S = 10
#: Parameters of libpq that the URL does not set.
_LIBPQ_DEFAULTS: Mapping[str, Any] = {
    "application_name": "treehammer",
    "client_encoding": "utf8",
    "connect_timeout": CONNECT_TIMEOUT_S,
    # Without keepalives, a client waits for hours when the server's machine disappears.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
#: Memory for pages of the file, by connection.
_CACHE_KIBIBYTES = 16_384
#: Oldest supported server; docs/databases.md lists the tested versions.
MIN_POSTGRESQL_VERSION = (13,)
#: Advisory lock held by the active writer; an arbitrary number unlikely to be used elsewhere.
_WRITER_LOCK_ID = int.from_bytes(b"treehamm", "big")
# Make commits survive a server crash even where the server disables synchronous commits.
_REQUIRE_DURABLE_COMMIT = (
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)


@contextmanager
def translate_errors(url: URL) -> Iterator[None]:
    """Convert database errors into errors with a remedy.

    Raises:
        StoreError: in place of errors of SQLAlchemy and the driver, and :class:`DamagedValueError`.
        KeyboardInterrupt: in place of errors raised while it left the block.
    """
    handled = sys.exception()
    try:
        yield
    except Exception as error:
        # SQLAlchemy closes a connection that Ctrl-C interrupts; cleaning up then fails.
        context = error.__context__
        while context and context is not handled:  # what is older than the block is not meant
            if isinstance(context, KeyboardInterrupt):
                raise context from None
            context = context.__context__
        if not isinstance(error, _DATABASE_ERRORS):
            raise
        cause = error.orig if isinstance(error, DBAPIError) else error
        # The text of PostgreSQL is in the language of the server.
        code = getattr(cause, "sqlstate", None)
        message = f"{cause} (SQLSTATE {code})" if code else str(cause)
        kind = StoreError
        if code == error_hints.NAME_TOO_LONG or isinstance(error, DataError | IntegrityError):
            kind = UnstorableContentError
        raise build_store_error(url, message, kind) from error


def build_store_error(url: URL, message: str, kind: type[StoreError] = StoreError) -> StoreError:
    """Build the error for a message of a database or its driver."""
    message = " ".join(message.split())
    for pattern, meaning, hint in error_hints.ERROR_HINTS.get(url.get_backend_name(), ()):
        if re.search(pattern, message, re.IGNORECASE):
            return kind(f"{meaning} ({message})", where=display_url(url), hint=hint)
    return kind(f"the database refused: {message}", where=display_url(url))


def sqlite_path(url: URL) -> Path | None:
    """Return the file of an SQLite URL; None for other databases and for one in memory."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def display_url(url: URL) -> str:
    """Format a database for display: a path, or its URL without secrets and connection options."""
    file = sqlite_path(url)
    where = url.set(drivername=url.get_backend_name()).difference_update_query(_CONNECTION_OPTIONS)
    return str(file) if file else mask_password(where)


class TableLayout(NamedTuple):
    """Tables as found in a database; names are in lower case.

    Attributes:
        columns: table -> its columns.
        keys: table -> the columns of its primary key.
        indexes: table -> the columns of each of its indexes.
    """

    columns: Mapping[str, Set[str]]
    keys: Mapping[str, tuple[str, ...]]
    indexes: Mapping[str, Set[tuple[str | None, ...]]]


class Backend:
    """Backend without any specifics."""

    #: Execution options of reading and of writing connections.
    reading_options: ClassVar[Mapping[str, Any]] = {}
    writing_options: ClassVar[Mapping[str, Any]] = {}
    #: Tables that this backend needs beside those of the schema.
    auxiliary_tables: ClassVar[frozenset[str]] = frozenset()
    #: True if a rollback also undoes changes of tables.
    transactional_ddl: ClassVar[bool] = True
    #: Query of the seconds since 1970 UTC by the server's clock, not as of the transaction's begin.
    clock_query: ClassVar[str] = "SELECT EXTRACT(EPOCH FROM CURRENT_TIMESTAMP)"

    def with_driver(self, url: URL) -> URL:
        """Return the URL with its default driver filled in."""
        return url

    def create_engine(self, url: URL) -> Engine:
        """Create an engine whose transactions begin by :meth:`begin`.

        Raises:
            ImportError: the driver is not installed.
        """
        engine = sa.create_engine(url, **self.engine_options(url))
        cast(logging.Logger, engine.pool.logger).addFilter(_is_no_interrupt)

        def begin(connection: Connection) -> None:
            self.begin(connection, connection.get_execution_options().get(ACCESS_OPTION, "read"))

        sa.event.listen(engine, "begin", begin)
        return engine

    def engine_options(self, url: URL) -> dict[str, Any]:
        """Return the arguments of ``create_engine`` beside the URL."""
        return {}

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Execute the statements that begin a transaction."""

    def require_usable_server(self, connection: Connection) -> None:
        """Refuse a server that cannot fulfill the guarantees of the store.

        Raises:
            StoreError: the server is too old, or its character set cannot hold every text.
        """

    @contextmanager
    def altering(self, plain: Connection) -> Iterator[Connection]:
        """Prepare a connection, outside of a transaction, for changes of tables."""
        yield plain.execution_options(**{ACCESS_OPTION: "alter", **self.writing_options})

    def identity(self, connection: Connection) -> tuple[Any, ...]:
        """Return a unique identity of this database under any address; () if it has none."""
        return ()

    def read_clock(self, connection: Connection) -> int:
        """Return the database's time, microseconds since 1970 UTC."""
        return round(float(connection.exec_driver_sql(self.clock_query).scalar_one()) * 1e6)

    def measure_bytes(self, connection: Connection) -> int | None:
        """Return the bytes that the database takes on disk; None if they are unknown."""
        return None

    def load_layout(self, connection: Connection) -> TableLayout:
        """Read existing tables with their columns, keys and indexes."""
        inspector = sa.inspect(connection)
        indexes = inspector.get_multi_indexes()
        return TableLayout(
            {
                table: {column["name"] for column in columns}
                for (_, table), columns in inspector.get_multi_columns().items()
            },
            {
                table: tuple(key["constrained_columns"])
                for (_, table), key in inspector.get_multi_pk_constraint().items()
            },
            {
                table: {tuple(index["column_names"]) for index in table_indexes}
                for (_, table), table_indexes in indexes.items()
            },
        )

    def require_integrity(self, connection: Connection) -> None:
        """Check everything that the database does not check by itself.

        Raises:
            StoreError: the database is damaged.
        """


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Return whether a record is not of Ctrl-C, which the pool raises beside its traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


class SQLiteBackend(Backend):
    """Backend for an SQLite file, or for a database in memory."""

    clock_query = "SELECT (julianday('now') - 2440587.5) * 86400"

    def create_engine(self, url: URL) -> Engine:
        """Create an engine whose transactions begin by :meth:`begin` instead of implicitly."""
        engine = super().create_engine(url)
        sa.event.listen(engine, "connect", _configure_connection)
        return engine

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Acquire the write lock before the first read, so that reads stay valid until commit."""
        connection.exec_driver_sql("BEGIN" if access == "read" else "BEGIN IMMEDIATE")

    @contextmanager
    def altering(self, plain: Connection) -> Iterator[Connection]:
        """Disable foreign keys: SQLite alters a table by copying and dropping it."""
        driver: Any = plain.connection.driver_connection
        # This has no effect inside a transaction.
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            yield plain.execution_options(**{ACCESS_OPTION: "alter"})
        finally:
            driver.execute("PRAGMA foreign_keys=ON")

    def measure_bytes(self, connection: Connection) -> int | None:
        """Return the bytes of the file with its write-ahead log; None for one in memory."""
        path = sqlite_path(connection.engine.url)
        if path is None:
            return None
        files = (path, path.with_name(f"{path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def require_integrity(self, connection: Connection) -> None:
        """Check every page, index and reference of the file."""
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
                where=display_url(connection.engine.url),
                hint="Put a backup back (treehammer db recover FILE), or move it away and run 'treehammer collect'.",
            )


def _configure_connection(connection: sqlite3.Connection, _record: Any) -> None:
    # Keep the driver from beginning transactions implicitly.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={BUSY_SECONDS * 1000:.0f}",
        "foreign_keys=ON",
        # With FULL, an acknowledged commit survives a power cut, also in WAL mode.
        "synchronous=FULL",
        # Roll-ups of a month stay in memory until the next write.
        f"cache_size={-_CACHE_KIBIBYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}")


class PostgreSQLBackend(Backend):
    """Backend for a PostgreSQL server, through psycopg."""

    reading_options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    # Under a stricter level a writer would see the state from before it waited for the lock.
    # Without a mode of their own, writers obey the server's default_transaction_read_only.
    writing_options = {"isolation_level": "READ COMMITTED", "postgresql_readonly": None}
    clock_query = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"

    def with_driver(self, url: URL) -> URL:
        """Return the URL with psycopg as its default driver."""
        lacks_driver = url.drivername in ("postgres", "postgresql")
        return url.set(drivername="postgresql+psycopg") if lacks_driver else url

    def engine_options(self, url: URL) -> dict[str, Any]:
        """Return options that replace connections cut by a restart of the server."""
        # These override the URL's options.
        defaults = {name: _LIBPQ_DEFAULTS[name] for name in _LIBPQ_DEFAULTS.keys() - url.query}
        # Behind a pooler, the prepared statement of a name can be that of another client.
        return {"connect_args": {**defaults, PREPARE_OPTION: None}, "pool_pre_ping": True}

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Admit one writer at a time, as on SQLite; it sees everything committed before."""
        if access != "read":
            # Sent together to save round trips, which take about as long as a commit.
            connection.exec_driver_sql(
                f"SET LOCAL lock_timeout = {BUSY_SECONDS * 1000:.0f}; {_REQUIRE_DURABLE_COMMIT}; "
                f"SELECT pg_advisory_xact_lock({_WRITER_LOCK_ID})"
            )

    def identity(self, connection: Connection) -> tuple[Any, ...]:
        """Return the server's start time (s), the database and its measurement table."""
        query = (
            "SELECT extract(epoch FROM pg_postmaster_start_time()), current_database(), "
            "to_regclass('measurement')::oid"
        )
        return ("postgresql", *connection.exec_driver_sql(query).one())

    def measure_bytes(self, connection: Connection) -> int | None:
        """Return the bytes of all tables and indexes of the database, whosever they are."""
        query = "SELECT pg_database_size(current_database())"
        return int(connection.exec_driver_sql(query).scalar_one())

    def require_usable_server(self, connection: Connection) -> None:
        """Refuse a server that is too old, or a database that cannot hold every text or number."""
        version = connection.dialect.server_version_info or ()
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        digits = connection.exec_driver_sql("SHOW extra_float_digits").scalar_one()
        if version < MIN_POSTGRESQL_VERSION:
            raise StoreError(
                f"the server is PostgreSQL {'.'.join(map(str, version))}; "
                f"{MIN_POSTGRESQL_VERSION[0]} or later is needed",
                where=display_url(connection.engine.url),
                hint="Use a newer server; pg_upgrade keeps what an old one holds.",
            )
        if encoding != "UTF8":
            raise StoreError(
                f"the database's encoding is {encoding}, which cannot hold every text",
                where=display_url(connection.engine.url),
                hint="Make another: CREATE DATABASE NAME ENCODING 'UTF8' TEMPLATE template0.",
            )
        if int(digits) < 1:
            raise StoreError(
                f"the server rounds the numbers that it sends (extra_float_digits is {digits})",
                where=display_url(connection.engine.url),
                hint="Have that changed: ALTER ROLE NAME SET extra_float_digits = 1.",
            )
