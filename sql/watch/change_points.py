"""Storage of change points."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from treehammer.sql.core.schema import change_point
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.engine.row_mapping import fetch_rows, insert_missing_rows
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store


def fetch_change_points(store: ResultsReader, first: int = 0) -> list[ChangePointRow]:
    """Fetch the changes since a day (YYYYMMDD), newest first."""
    table = change_point.c
    query = sa.select(change_point).where(table.day >= first)
    order = (table.day.desc(), table.test_name, table.metric, table.id)
    with store.connection() as connection:
        return fetch_rows(connection, ChangePointRow, query.order_by(*order))


def find_change_point(store: ResultsReader, identity: str) -> ChangePointRow | None:
    """Find a change by its identity; None for an unknown one."""
    query = sa.select(change_point).where(change_point.c.id == identity)
    with store.connection() as connection:
        return next(iter(fetch_rows(connection, ChangePointRow, query)), None)


def replace_change_points(store: Store, rows: Iterable[ChangePointRow], first: int) -> None:
    """Write the changes since a day (YYYYMMDD) in place of the stored ones."""
    with store.writing_connection() as connection:
        connection.execute(sa.delete(change_point).where(change_point.c.day >= first))
        insert_missing_rows(connection, change_point, rows)
