"""Base class of all database backends, SQLite's backend, compiled statements, translation of errors.

SQLAlchemy builds and checks the parameters of every row by name, which takes longer than SQLite needs
to insert it; and it expands every list of a query anew. Statements for many rows are therefore compiled
once to the driver's own form.

Errors of databases become messages with remedies, see :mod:`treehammer.sql.engine.error_hints`.
"""

from __future__ import annotations

import socket
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.types import TypeDecorator, TypeEngine

from treehammer.config import mask_password
from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.core.column_types import REAL, StoredText
from treehammer.sql.core.measurement_columns import DamagedValueError
from treehammer.sql.engine import error_hints

#: Seconds that a writer waits for another writer before it fails.
BUSY_SECONDS = error_hints.BUSY_SECONDS
# URL parameters that describe the connection rather than the location of the database.
_CONNECTION_OPTIONS = (
    "connect_timeout",
    "passfile",
    "prepare_threshold",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
)
_DATABASE_ERRORS = (SQLAlchemyError, sqlite3.Error, socket.gaierror, DamagedValueError)
#: Statements that are compiled; there are about twenty, and ten lengths of the lists of each query.
_MAX_STATEMENTS = 256
#: Types whose values the drivers of SQLite and PostgreSQL take as they are.
_PLAIN_TYPES = (type(REAL), sa.Boolean, sa.LargeBinary)
Row = Mapping[str, Any]
#: Connection execution option with the purpose of its transactions.
ACCESS_OPTION = "treehammer_access"
#: Purpose of a transaction: reading (default), writing rows, or changing tables.
AccessMode = Literal["read", "write", "alter"]
#: Default connection timeout in seconds, unless the URL sets one.
CONNECT_TIMEOUT_S = 10
#: Memory for pages of the file, by connection.
_CACHE_KIBIBYTES = 16_384


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
        if interrupt := _find_interrupt(error, handled):
            raise interrupt from None
        if not isinstance(error, _DATABASE_ERRORS):
            raise
        message = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise build_store_error(url, message, _classify_error(error, message)) from error


def _find_interrupt(error: Exception, handled: BaseException | None) -> KeyboardInterrupt | None:
    """Find a KeyboardInterrupt during which the error was raised; ``handled`` is older than both."""
    context = error.__context__
    while context and context is not handled and not isinstance(context, KeyboardInterrupt):
        context = context.__context__
    return context if isinstance(context, KeyboardInterrupt) and context is not handled else None


def _classify_error(error: Exception, message: str) -> type[StoreError]:
    """Select the error class: unstorable content or a fault of the database."""
    content = (
        isinstance(error, DataError | IntegrityError) or error_hints.INDEX_ROW_TOO_LONG in message
    )
    return UnstorableContentError if content else StoreError


def build_store_error(url: URL, message: str, kind: type[StoreError] = StoreError) -> StoreError:
    """Build the error for a message of a database or its driver."""
    message = " ".join(message.split())
    for sign, meaning, hint in error_hints.ERROR_HINTS.get(url.get_backend_name(), ()):
        if sign in message.lower():
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


@dataclass(frozen=True)
class CompiledStatement:
    """SQL with positional parameters.

    Attributes:
        text: SQL of the dialect.
        names: names of its parameters, in order.
        text_places: positions of texts, which are NULL if they are empty.
        converters: position and function of each other parameter that the driver cannot take as it is.
    """

    text: str
    names: tuple[str, ...]
    text_places: tuple[int, ...]
    converters: tuple[tuple[int, Callable[[Any], Any]], ...]

    def bind(self, rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
        """Yield the parameters of each row."""
        pick = itemgetter(*self.names)
        for row in rows:
            values = list(pick(row))
            for place in self.text_places:
                if not values[place]:
                    values[place] = None
            for place, convert in self.converters:
                values[place] = convert(values[place])
            yield tuple(values)


@dataclass(frozen=True)
class CompiledQuery:
    """Query with positional parameters, among them lists of one length.

    Attributes:
        text: SQL of the dialect.
        places: name and index in its list of each parameter; the index of a single value is None.
    """

    text: str
    places: tuple[tuple[str, int | None], ...]

    def bind(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the parameters; lists are filled up with NULL, which equals nothing."""
        values = []
        for name, index in self.places:
            value = parameters[name]
            if index is not None:
                value = value[index] if index < len(value) else None
            values.append(value)
        return tuple(values)


@lru_cache(maxsize=_MAX_STATEMENTS)
def insert_into(table: sa.Table) -> sa.Insert:
    """Return the statement that inserts whole rows; the same object for each call."""
    return sa.insert(table)


@lru_cache(maxsize=_MAX_STATEMENTS)
def compile_statement(
    statement: sa.Insert | sa.Update, dialect_type: Callable[..., Dialect], paramstyle: str
) -> CompiledStatement:
    """Compile a statement with at least two parameters.

    Args:
        statement: an INSERT of whole rows, or an UPDATE with named parameters; a constant, since it
            is kept.
        dialect_type: of the database.
        paramstyle: positional style of the driver, see PEP 249.
    """
    dialect = dialect_type(paramstyle=paramstyle)
    columns = [*statement.table.c.keys()] if statement.is_insert else None
    compiled: Any = statement.compile(dialect=dialect, column_keys=columns)
    names = tuple(compiled.positiontup)
    types = [compiled.binds[name].type for name in names]
    texts = tuple(place for place, type_ in enumerate(types) if isinstance(type_, StoredText))
    converters = (
        (place, _find_converter(type_, dialect))
        for place, type_ in enumerate(types)
        if place not in texts
    )
    conversions = tuple((place, convert) for place, convert in converters if convert is not None)
    return CompiledStatement(str(compiled), names, texts, conversions)


def _find_converter(type_: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    if isinstance(type_, _PLAIN_TYPES):
        return None
    if isinstance(type_, TypeDecorator):  # without the checks of its general processor
        return lambda value: type_.process_bind_param(value, dialect)
    return type_.dialect_impl(dialect).bind_processor(dialect)


def round_length(length: int) -> int:
    """Round the length of a list up to a power of two, so that few lengths are compiled."""
    return 1 << max(length - 1, 0).bit_length()


@lru_cache(maxsize=_MAX_STATEMENTS)
def compile_query(
    query: sa.Executable, length: int, dialect_type: Callable[..., Dialect], paramstyle: str
) -> CompiledQuery:
    """Compile a query whose parameters are lists of a length or single values.

    Args:
        query: with parameters of numbers and texts only; a constant, since it is kept.
        length: of its lists.
        dialect_type: of the database.
        paramstyle: positional style of the driver, see PEP 249.
    """
    dialect = dialect_type(paramstyle=paramstyle)
    binds: dict[str, Any] = query.compile(dialect=dialect).binds  # type: ignore[attr-defined]
    values: dict[str, Any] = dict.fromkeys(binds)
    places: dict[str, tuple[str, int | None]] = {name: (name, None) for name in binds}
    for name in (name for name, bind in binds.items() if bind.expanding):
        values[name] = [None] * length
        places |= {f"{name}_{index + 1}": (name, index) for index in range(length)}
    expanded: Any = query.params(values).compile(  # type: ignore[attr-defined]
        dialect=dialect, compile_kwargs={"render_postcompile": True}
    )
    return CompiledQuery(str(expanded), tuple(places[name] for name in expanded.positiontup))


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
    #: Driver and its positional parameter style, for which statements are compiled once; None if
    #: SQLAlchemy has to pass each value.
    positional_driver: ClassVar[tuple[str, str] | None] = None
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
        sa.event.listen(engine, "begin", self._begin)
        return engine

    def engine_options(self, url: URL) -> dict[str, Any]:
        """Return the arguments of ``create_engine`` beside the URL."""
        return {}

    def _begin(self, connection: Connection) -> None:
        self.begin(connection, connection.get_execution_options().get(ACCESS_OPTION, "read"))

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

    def insert_rows(self, connection: Connection, table: sa.Table, rows: Iterable[Row]) -> None:
        """Insert rows that hold a value, or None, for every column; other entries are ignored.

        A server may insert some of them while others are iterated.
        """
        self.execute_rows(connection, insert_into(table), rows)

    def execute_rows(
        self, connection: Connection, statement: sa.Insert | sa.Update, rows: Iterable[Row]
    ) -> None:
        """Execute a constant statement for each row; at least one."""
        if style := self._positional_style(connection):
            dialect: Any = type(connection.dialect)
            compiled = compile_statement(statement, dialect, style)
            connection.exec_driver_sql(compiled.text, [*compiled.bind(rows)])
        elif statement.is_insert:
            names = statement.table.c.keys()
            connection.execute(statement, [{name: row[name] for name in names} for row in rows])
        else:
            connection.execute(statement, [*rows])

    def fetch_rows(
        self, connection: Connection, query: sa.Executable, parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of a constant query of numbers and texts.

        Args:
            connection: connection of any transaction.
            query: with expanding parameters or single values.
            parameters: by name; a list for each expanding one.
        """
        if not (style := self._positional_style(connection)):
            return connection.execute(query, parameters).all()
        lists = (value for value in parameters.values() if isinstance(value, list))
        length = round_length(max(map(len, lists), default=0))
        dialect: Any = type(connection.dialect)
        compiled = compile_query(query, length, dialect, style)
        return connection.exec_driver_sql(compiled.text, compiled.bind(parameters)).all()

    def _positional_style(self, connection: Connection) -> str:
        driver, style = self.positional_driver or ("", "")
        return style if connection.dialect.driver == driver else ""

    def identity(self, connection: Connection) -> tuple[Any, ...]:
        """Return a unique identity of this database under any address; () if it has none."""
        return ()

    def read_clock(self, connection: Connection) -> int:
        """Return the database's time, microseconds since 1970 UTC."""
        return round(float(connection.exec_driver_sql(self.clock_query).scalar_one()) * 1e6)

    def measure_bytes(self, connection: Connection) -> int | None:
        """Return the bytes that the database takes on disk; None if they are unknown."""
        return None

    def read_layout(self, connection: Connection) -> TableLayout:
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


class SQLiteBackend(Backend):
    """Backend for an SQLite file, or for a database in memory."""

    positional_driver = ("pysqlite", "qmark")
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
                hint="Put it back from a backup, or move it away and run 'treehammer collect'.",
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
