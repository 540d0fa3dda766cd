"""Storage of watched series and their days."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from treehammer.sql.core.schema import watched_day, watched_series
from treehammer.sql.core.watch_rows import WatchedDayRow, WatchedSeriesRow
from treehammer.sql.engine.row_mapping import CHUNK_ROWS, fetch_rows, upsert_rows
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store


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
        values = [asdict(row) for row in days]
        for start in range(0, len(values), CHUNK_ROWS):
            connection.execute(sa.insert(watched_day), values[start : start + CHUNK_ROWS])


def fetch_watched_series(store: ResultsReader, **values: str) -> list[WatchedSeriesRow]:
    """Fetch the series with these values of their columns."""
    table = watched_series
    query = sa.select(table).where(*(table.c[name] == value for name, value in values.items()))
    with store.connection() as connection:
        return fetch_rows(connection, WatchedSeriesRow, query.order_by(table.c.id))


def fetch_watched_days(
    store: ResultsReader, first: int, last: int, /, **values: str
) -> list[WatchedDayRow]:
    """Fetch the days from ``first`` to ``last`` of the series with these values, by series and day."""
    table = watched_day
    query = sa.select(table).where(table.c.day.between(first, last))
    if values:
        own = (watched_series.c[name] == value for name, value in values.items())
        query = query.where(table.c.series_id.in_(sa.select(watched_series.c.id).where(*own)))
    with store.connection() as connection:
        return fetch_rows(connection, WatchedDayRow, query.order_by(table.c.series_id, table.c.day))


def find_last_watched_day(store: ResultsReader) -> int | None:
    """Find the last stored day (YYYYMMDD); None without any."""
    with store.connection() as connection:
        found = connection.scalar(sa.select(sa.func.max(watched_day.c.day)))
    return None if found is None else int(found)
