"""What every kind of database has in common: the seam between ours and theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

#: The execution option of connections that says what their transactions are for.
ACCESS_OPTION = "treehammer_access"
#: Reading what is there (where nothing else is said), writing rows, or changing the tables.
AccessMode = Literal["read", "write", "alter"]
#: Seconds until a server that does not answer is given up, where the URL says nothing else.
CONNECT_TIMEOUT_S = 10


class TableLayout(NamedTuple):
    """Tables as a database has them; names are in lower case.

    Attributes:
        columns: table -> its columns.
        keys: table -> the columns of its primary key.
        indexes: table -> the columns of each of its indexes.
    """

    columns: Mapping[str, Set[str]]
    keys: Mapping[str, tuple[str, ...]]
    indexes: Mapping[str, Set[tuple[str | None, ...]]]


class Backend:
    """A database that does nothing in its own way."""

    #: Execution options of connections that read, and of those that write.
    reading_options: ClassVar[Mapping[str, Any]] = {}
    writing_options: ClassVar[Mapping[str, Any]] = {}
    #: Tables that are there beside those of the schema, for the database's own sake.
    auxiliary_tables: ClassVar[frozenset[str]] = frozenset()
    #: Whether a transaction undoes changes of tables, too.
    transactional_ddl: ClassVar[bool] = True

    def with_driver(self, url: URL) -> URL:
        """The URL with the driver that is meant."""
        return url

    def create_engine(self, url: URL) -> Engine:
        """An engine whose transactions begin by :meth:`begin`.

        Raises:
            ImportError: the driver is not installed.
        """
        engine = sa.create_engine(url, **self.engine_options(url))
        sa.event.listen(engine, "begin", self._begin)
        return engine

    def engine_options(self, url: URL) -> dict[str, Any]:
        """Arguments of ``create_engine`` beside the URL."""
        return {}

    def _begin(self, connection: Connection) -> None:
        self.begin(connection, connection.get_execution_options().get(ACCESS_OPTION, "read"))

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """What is said at the beginning of a transaction."""

    def require_usable_server(self, connection: Connection) -> None:
        """Refuse a server that cannot keep what the store promises.

        Raises:
            StoreError: it is too old, or its database cannot hold every text.
        """

    @contextmanager
    def altering(self, plain: Connection) -> Iterator[Connection]:
        """The connection, before its transaction, on which tables may be changed inside."""
        yield plain.execution_options(**{ACCESS_OPTION: "alter", **self.writing_options})

    def identity(self, connection: Connection) -> tuple[Any, ...]:
        """What tells this database from all others, by whatever address; () where nothing does."""
        return ()

    def read_layout(self, connection: Connection) -> TableLayout:
        """The tables that are there, and what is in them."""
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
                table: {tuple(index["column_names"]) for index in some}
                for (_, table), some in indexes.items()
            },
        )

    def require_integrity(self, connection: Connection) -> None:
        """Check everything that the database does not check by itself.

        Raises:
            StoreError: something is wrong.
        """
