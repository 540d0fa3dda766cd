"""Database engine: backends by kind of database, transactions, cancellation of queries, mapping of rows.

The queries of one request are a :class:`QueryGroup`, which another thread can cancel. Rows of tables
are mapped to the dataclasses of :mod:`treehammer.sql.core.rows` and :mod:`treehammer.sql.core.watch_rows`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any, TypeVar, get_type_hints

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from treehammer.errors import ConfigError, StoreError, explain_missing_extra
from treehammer.sql.core.rows import PairRow, StoredRow, VerdictRow
from treehammer.sql.engine import backend
from treehammer.sql.engine.backend import (
    ACCESS_OPTION,
    Backend,
    PostgreSQLBackend,
    SQLiteBackend,
    translate_errors,
)
from treehammer.sql.engine.oracle_backend import OracleBackend

_BACKENDS: dict[str, Backend] = {
    "sqlite": SQLiteBackend(),
    "postgresql": PostgreSQLBackend(),
    "oracle": OracleBackend(),
}
_GENERIC = Backend()
Result = TypeVar("Result")
_KEY = "treehammer_query_group"
#: Seconds for a server to accept a cancellation.
_CANCEL_TIMEOUT_S = 2.0
_CURRENT: ContextVar[QueryGroup | None] = ContextVar("query_group", default=None)
Row = TypeVar("Row", bound=StoredRow)
Id = TypeVar("Id")
#: Rows per lookup and write; an IN list may hold 1000 on Oracle.
CHUNK_ROWS = 1000


def backend_of(database: URL | Engine) -> Backend:
    """Return the backend of a database; the generic one if its kind is unknown."""
    name = database.get_backend_name() if isinstance(database, URL) else database.dialect.name
    return _BACKENDS.get(name, _GENERIC)


class QueryGroup:
    """The queries of one request, which run in one thread and are cancelled together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = set[Any]()
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the group was cancelled."""
        return self._cancelled

    def run(self, work: Callable[[], Result]) -> Result:
        """Call a function whose queries belong to this group."""
        token = _CURRENT.set(self)
        try:
            return work()
        finally:
            _CURRENT.reset(token)

    def cancel(self) -> None:
        """Cancel the running query and refuse any other; repeat it until the thread has ended.

        A query that begins at the same moment is not noticed by its database.
        """
        # The lock keeps connections from being returned to the pool and used by others meanwhile.
        with self._lock:
            self._cancelled = True
            for connection in self._connections:
                with suppress(Exception):  # It may have ended by itself.
                    if hasattr(connection, "interrupt"):  # SQLite
                        connection.interrupt()
                    elif hasattr(connection, "cancel_safe"):  # PostgreSQL
                        connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
                    else:
                        connection.cancel()

    def add(self, connection: Any) -> None:
        """Add a connection of the database's driver."""
        with self._lock:
            self._connections.add(connection)

    def remove(self, connection: Any) -> None:
        """Remove a connection, which is returned to the pool."""
        with self._lock:
            self._connections.discard(connection)


def is_cancelled() -> bool:
    """Return whether the queries of the current request were cancelled."""
    group = _CURRENT.get()
    return group is not None and group.cancelled


def make_cancellable(engine: Engine) -> None:
    """Let groups cancel the queries of an engine."""
    sa.event.listen(engine, "checkout", _join_group)
    sa.event.listen(engine, "checkin", _leave_group)
    sa.event.listen(engine, "before_cursor_execute", _require_uncancelled)


def _join_group(connection: Any, record: Any, _proxy: Any) -> None:
    if (group := _CURRENT.get()) is not None:
        record.info[_KEY] = group
        group.add(connection)


def _leave_group(connection: Any, record: Any) -> None:
    if (group := record.info.pop(_KEY, None)) is not None:
        group.remove(connection)


def _require_uncancelled(*_: Any) -> None:
    if is_cancelled():
        raise StoreError("the query was cancelled")


def parse_url(text: str) -> URL:
    """Parse a database URL.

    Raises:
        ConfigError: the text is not a URL, or no driver supports its database.
    """
    try:
        url = make_url(text)
        if "@" in (url.host or ""):
            raise ArgumentError("an @ in a password is written %40")
        if str(url.database).startswith("file:"):
            raise ArgumentError("a file is named by its path, not as file:")
        if url.drivername == "postgres":
            url = url.set(drivername="postgresql")
        url = backend_of(url).with_driver(url)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
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
    deadline = time.monotonic() + backend.BUSY_SECONDS
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


@contextmanager
def disposing(engine: Engine) -> Iterator[Engine]:
    """Dispose of an engine at the end of a block."""
    try:
        yield engine
    finally:
        engine.dispose()


@cache
def _list_fields(kind: Callable[..., StoredRow]) -> list[tuple[str, bool]]:
    """List the fields of a row class, each with a flag for text."""
    return [(name, hint is str) for name, hint in get_type_hints(kind).items()]


def load_rows(connection: Connection, kind: type[Row], query: sa.Select[Any]) -> list[Row]:
    """Load the rows of a query as dataclasses; unknown text becomes ''."""
    names = list(query.selected_columns.keys())
    build: Callable[..., Row] = kind
    places = [(names.index(name), is_text) for name, is_text in _list_fields(build)]
    return [
        build(*(cells[place] or "" if is_text else cells[place] for place, is_text in places))
        for cells in connection.execute(query)
    ]


def split_ids(ids: Iterable[Id]) -> Iterator[list[Id]]:
    """Split distinct identities into lists that an IN list may hold."""
    distinct = list(dict.fromkeys(ids))
    return (distinct[start : start + CHUNK_ROWS] for start in range(0, len(distinct), CHUNK_ROWS))


def load_by_ids(
    connection: Connection,
    query: sa.Select[Any],
    column: sa.ColumnElement[Any],
    ids: Iterable[Id],
) -> Iterator[Any]:
    """Load the rows of a query of which a column has one of many values."""
    for part in split_ids(ids):
        yield from connection.execute(query.where(column.in_(part)))


def load_rows_by_ids(
    connection: Connection,
    kind: type[Row],
    query: sa.Select[Any],
    column: sa.ColumnElement[Any],
    ids: Iterable[Id],
) -> list[Row]:
    """Load the rows that :func:`load_by_ids` yields as dataclasses."""
    parts = (query.where(column.in_(part)) for part in split_ids(ids))
    return [row for part in parts for row in load_rows(connection, kind, part)]


def select_latest(
    table: sa.Table,
    by: Sequence[sa.ColumnElement[Any]],
    order: Sequence[sa.ColumnElement[Any]],
    *conditions: sa.ColumnElement[bool],
) -> sa.Select[Any]:
    """Select the last row, in an order, of those with the same values of some columns."""
    newest = [column.desc() for column in order]
    place = sa.func.row_number().over(partition_by=by, order_by=newest)
    ranked = sa.select(table.c.id, place.label("place")).where(*conditions).subquery("ranked")
    return sa.select(table).where(table.c.id.in_(sa.select(ranked.c.id).where(ranked.c.place == 1)))


def insert_values(
    connection: Connection, table: sa.Table, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Insert rows that hold a value, or None, for every column; other entries are ignored."""
    names = table.c.keys()
    remaining = iter(rows)
    while chunk := [{name: row[name] for name in names} for row in islice(remaining, CHUNK_ROWS)]:
        connection.execute(sa.insert(table), chunk)


def insert_new_rows(connection: Connection, table: sa.Table, rows: Iterable[StoredRow]) -> None:
    """Insert rows whose keys are known to be missing."""
    insert_values(connection, table, map(vars, rows))


def insert_missing_rows(connection: Connection, table: sa.Table, rows: Iterable[StoredRow]) -> None:
    """Insert the rows whose keys are missing."""
    _write_rows(connection, table, rows, replace=False)


def upsert_rows(connection: Connection, table: sa.Table, rows: Iterable[StoredRow]) -> None:
    """Insert rows, or update those with the same key."""
    _write_rows(connection, table, rows, replace=True)


def replace_comparison_rows(
    connection: Connection,
    table: sa.Table,
    comparison_id: str,
    rows: Sequence[PairRow | VerdictRow],
) -> None:
    """Replace the rows of a comparison, keeping their order."""
    connection.execute(sa.delete(table).where(table.c.comparison_id == comparison_id))
    values = [
        {**vars(row), "comparison_id": comparison_id, "line": line} for line, row in enumerate(rows)
    ]
    if values:
        connection.execute(sa.insert(table), values)


def _write_rows(
    connection: Connection, table: sa.Table, rows: Iterable[StoredRow], *, replace: bool
) -> None:
    """Insert missing rows, and update existing ones, as upsert syntax differs between databases."""
    columns = [*table.primary_key]
    remaining = iter(rows)
    while rows_by_key := _index_rows(columns, islice(remaining, CHUNK_ROWS), last=replace):
        keys = sa.select(*columns).where(columns[0].in_({key[0] for key in rows_by_key}))
        existing_keys = {tuple(key) for key in connection.execute(keys)}
        if missing := [row for key, row in rows_by_key.items() if key not in existing_keys]:
            connection.execute(sa.insert(table), missing)
        if replace:
            existing = [row for key, row in rows_by_key.items() if key in existing_keys]
            _update_rows(connection, table, existing)


def _index_rows(
    columns: Sequence[sa.Column[Any]], rows: Iterable[StoredRow], *, last: bool
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Map primary keys to the values of the first row of each, or of the last."""
    rows_by_key: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in map(vars, rows):
        key = tuple(row[column.key] for column in columns)
        if last or key not in rows_by_key:
            rows_by_key[key] = row
    return rows_by_key


def _update_rows(connection: Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    # Parameters need distinct names, because SET uses those of the columns.
    columns = [*table.primary_key]
    has_key = sa.and_(*(column == sa.bindparam(f"key_{column.key}") for column in columns))
    parameters = [
        row | {f"key_{column.key}": row[column.key] for column in columns} for row in rows
    ]
    connection.execute(sa.update(table).where(has_key), parameters)
