"""Storage of watched series, their days, and the change points found in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from treehammer.sql.core.schema import change_point, watched_day, watched_series
from treehammer.sql.core.watch_rows import ChangePointRow, WatchedDayRow, WatchedSeriesRow
from treehammer.sql.engine.row_mapping import (
    insert_missing_rows,
    insert_new_rows,
    upsert_rows,
)
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store


def fetch_change_points(store: ResultsReader, first: int = 0) -> list[ChangePointRow]:
    """Fetch the changes since a day (YYYYMMDD), newest first."""
    table = change_point.c
    query = sa.select(change_point).where(table.day >= first)
    order = (table.day.desc(), table.test_name, table.metric, table.id)
    return store.fetch_rows(ChangePointRow, query.order_by(*order))


def find_change_point(store: ResultsReader, identity: str) -> ChangePointRow | None:
    """Find a change by its identity; None for an unknown one."""
    query = sa.select(change_point).where(change_point.c.id == identity)
    return next(iter(store.fetch_rows(ChangePointRow, query)), None)


def replace_change_points(store: Store, rows: Iterable[ChangePointRow], first: int) -> None:
    """Write the changes since a day (YYYYMMDD) in place of the stored ones."""
    with store.writing_connection() as connection:
        connection.execute(sa.delete(change_point).where(change_point.c.day >= first))
        insert_missing_rows(connection, change_point, rows)


def replace_watched_days(
    store: Store,
    series: Iterable[WatchedSeriesRow],
    days: Sequence[WatchedDayRow],
    first: int,
    last: int,
) -> None:
    """Write all watched days from day ``first`` to ``last`` (YYYYMMDD) in place of the stored ones."""
    with store.writing_connection() as connection:
        connection.execute(sa.delete(watched_day).where(watched_day.c.day.between(first, last)))
        upsert_rows(connection, watched_series, series)
        insert_new_rows(connection, watched_day, days)


def fetch_watched_series(store: ResultsReader, **values: str) -> list[WatchedSeriesRow]:
    """Fetch the series with these values of their columns."""
    table = watched_series
    query = sa.select(table).where(*(table.c[name] == value for name, value in values.items()))
    return store.fetch_rows(WatchedSeriesRow, query.order_by(table.c.id))


def fetch_watched_days(
    store: ResultsReader, first: int, last: int, /, **values: str
) -> list[WatchedDayRow]:
    """Fetch the days from ``first`` to ``last`` of the series with these values, by series and day."""
    table = watched_day
    query = sa.select(table).where(table.c.day.between(first, last))
    if values:
        conditions = (watched_series.c[name] == value for name, value in values.items())
        query = query.where(
            table.c.series_id.in_(sa.select(watched_series.c.id).where(*conditions))
        )
    return store.fetch_rows(WatchedDayRow, query.order_by(table.c.series_id, table.c.day))


def find_last_watched_day(store: ResultsReader) -> int | None:
    """Find the last stored day (YYYYMMDD); None without any."""
    with store.connection() as connection:
        last_day = connection.scalar(sa.select(sa.func.max(watched_day.c.day)))
    return None if last_day is None else int(last_day)
