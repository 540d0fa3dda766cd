"""Base class of all database backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from treehammer.sql.engine.compiled_statements import (
    Row,
    compile_query,
    compile_statement,
    insert_into,
    round_length,
)

#: Connection execution option with the purpose of its transactions.
ACCESS_OPTION = "treehammer_access"
#: Purpose of a transaction: reading (default), writing rows, or changing tables.
AccessMode = Literal["read", "write", "alter"]
#: Default connection timeout in seconds, unless the URL sets one.
CONNECT_TIMEOUT_S = 10


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
