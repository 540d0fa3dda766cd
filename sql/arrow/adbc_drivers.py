"""The ADBC drivers behind :mod:`treehammer.sql.arrow.stream_process`: one for each kind of database.

All that one driver answers comes from one state of the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from treehammer.sql.engine.error_hints import BUSY_SECONDS

DriverRow = tuple[Any, ...]


@dataclass(frozen=True)
class SqlStatement:
    """One SELECT and its parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class AdbcDriver(Protocol):
    """A connection, inside a transaction that sees one state of the database."""

    def fetch_rows(self, statement: SqlStatement) -> Iterator[DriverRow]:
        """Fetch a few rows."""

    def fetch_concurrently(self, statement: SqlStatement) -> Iterator[DriverRow]:
        """Fetch a stream of rows that may be read while batches are."""

    def fetch_batches(self, statement: SqlStatement, rows: int) -> Iterator[pa.RecordBatch]:
        """Stream batches of limited size in the types of the driver."""


@contextmanager
def _open_sqlite(address: str) -> Iterator[AdbcDriver]:
    from adbc_driver_sqlite import dbapi

    # The connection is one transaction.
    with dbapi.connect(address) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}")
        yield _SqliteDriver(connection)


class _SqliteDriver:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def fetch_rows(self, statement: SqlStatement) -> Iterator[DriverRow]:
        return _stream_rows(self._connection, statement)

    fetch_concurrently = fetch_rows

    def fetch_batches(self, statement: SqlStatement, rows: int) -> Iterator[pa.RecordBatch]:
        """Skip the first row, which only sets the types that the driver guesses from values."""
        from adbc_driver_sqlite import StatementOptions

        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(rows)})
            cursor.execute(statement.sql, statement.parameters)
            for number, batch in enumerate(cursor.fetch_record_batch()):
                whole = batch if number else batch.slice(1)
                if whole.num_rows:
                    yield whole


@contextmanager
def _open_postgresql(address: str) -> Iterator[AdbcDriver]:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(address) as connection, dbapi.connect(address) as second:
        for each in (connection, second):
            _execute(each, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((state,),) = _stream_rows(connection, SqlStatement("SELECT pg_export_snapshot()"))
        _execute(second, f"SET TRANSACTION SNAPSHOT '{state}'")
        yield _PostgresqlDriver(connection, second)


class _PostgresqlDriver:
    """The driver streams by COPY, of which a connection does one at a time."""

    def __init__(self, connection: Any, second: Any) -> None:
        self._connection = connection
        self._second = second

    def fetch_rows(self, statement: SqlStatement) -> Iterator[DriverRow]:
        return iter([*_stream_rows(self._connection, statement)])

    def fetch_concurrently(self, statement: SqlStatement) -> Iterator[DriverRow]:
        return _stream_rows(self._second, statement)

    def fetch_batches(self, statement: SqlStatement, rows: int) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.sql)
            for batch in cursor.fetch_record_batch():
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)


def _stream_rows(connection: Any, statement: SqlStatement) -> Iterator[DriverRow]:
    with connection.cursor() as cursor:
        # With parameters, even with none of them, PostgreSQL's driver holds the whole answer.
        cursor.execute(statement.sql, statement.parameters or None)
        while row := cursor.fetchone():
            yield row


def _execute(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


_DRIVERS = {"sqlite": _open_sqlite, "postgresql": _open_postgresql}
#: Names of the databases that can be read in bulk, as SQLAlchemy calls them.
BACKENDS = tuple(_DRIVERS)


def open_driver(backend: str, address: str) -> AbstractContextManager[AdbcDriver]:
    """Open a database.

    Args:
        backend: one of :data:`BACKENDS`.
        address: the file of SQLite, the connection string of PostgreSQL.
    """
    return _DRIVERS[backend](address)
