"""Databases of unit tests: created quickly, and without compiling statements again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.util import LRUCache

from treehammer.sql.core.backends.sqlite import SQLiteBackend
from treehammer.sql.setup import schema_upgrade

_MAX_STATEMENTS = 2000


@pytest.fixture(scope="session", autouse=True)
def quick_databases() -> Iterator[None]:
    """Share compiled statements between the engines of all tests, and never wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            SQLiteBackend, "create_engine", _share_statements(SQLiteBackend.create_engine)
        )
        patch.setattr(schema_upgrade, "_create_tables", _replay(schema_upgrade._create_tables))
        yield


def _share_statements(create_engine: Any) -> Any:
    """Give all engines one dialect, which is part of a statement's key, and one cache."""
    shared = create_engine(SQLiteBackend(), sa.make_url("sqlite://"))
    shared.connect().close()  # the first connection completes the dialect
    compiled: LRUCache[Any, Any] = LRUCache(_MAX_STATEMENTS)

    def create_sharing_engine(self: SQLiteBackend, url: URL) -> Engine:
        engine: Engine = create_engine(self, url)
        engine.dialect = shared.dialect
        engine.update_execution_options(compiled_cache=compiled)
        sa.event.listen(engine, "connect", _skip_disk)
        return engine

    return create_sharing_engine


def _skip_disk(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")  # no test cuts the power


def _replay(create_tables: Any) -> Any:
    """Record the statements that create the schema, and execute them in later databases."""
    recorded: dict[str, list[tuple[str, Any]]] = {}

    def create_or_replay(connection: Connection) -> None:
        dialect = connection.dialect.name
        if dialect in recorded:
            for statement, values in recorded[dialect]:
                connection.exec_driver_sql(statement, values)
            return
        made: list[tuple[str, Any]] = []

        def record(
            _connection: object, _cursor: object, statement: str, values: Any, *_: object
        ) -> None:
            if statement.lstrip().startswith(("CREATE", "INSERT")):
                made.append((statement, values))

        sa.event.listen(connection, "before_cursor_execute", record)
        create_tables(connection)
        sa.event.remove(connection, "before_cursor_execute", record)
        recorded[dialect] = made

    return create_or_replay
