"""Integrity check of a whole results database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.errors import StoreError
from treehammer.sql.core import schema
from treehammer.sql.core.packing import (
    DamagedValueError,
    decode_latency,
    decode_numbers,
    unpack_lists,
)
from treehammer.sql.core.schema import measurement, operation
from treehammer.sql.engine.database_engine import require_integrity
from treehammer.sql.engine.database_errors import display_url
from treehammer.sql.read.measurement_queries import FETCH_ROWS
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.setup.schema_check import require_complete_schema
from treehammer.sql.write import rollups
from treehammer.text_formatting import pluralize

#: Number of measurements that a message names.
MAX_LISTED = 10
#: Column -> parser of its values. Many measurements share a histogram, none shares its passes.
_DECODERS: dict[sa.Column[Any], Callable[[Any], object]] = {
    measurement.c.read_latency_hist: lru_cache(maxsize=1 << 16)(decode_numbers),
    measurement.c.passes: unpack_lists,
    operation.c.latency: decode_latency,
}


def check_database(url: str) -> dict[str, int]:
    """Check that a database is intact, complete and of this schema version.

    Returns:
        number of rows by table.

    Raises:
        NothingToDoError: no database exists.
        StoreError: it is damaged or of another version; the message gives the remedy.
    """
    with ResultsReader.open(url) as reader, reader.connection() as connection:
        require_integrity(connection)
        require_complete_schema(connection)
        _require_undamaged_values(connection)
        if difference := rollups.find_difference(connection):
            raise StoreError(
                f"a roll-up differs from its measurements: {difference}",
                where=display_url(reader.url),
                hint="Run: treehammer db rebuild",
            )
        tables = schema.metadata.sorted_tables
        count = sa.func.count()
        return {t.name: connection.scalar(sa.select(count).select_from(t)) or 0 for t in tables}


def _require_undamaged_values(connection: Connection) -> None:
    """Refuse a database in which a list of numbers or a histogram cannot be read.

    Raises:
        StoreError: values are damaged; the message names measurements and the remedy.
    """
    for column, read in _DECODERS.items():
        ids = list(dict.fromkeys(_find_damaged_values(connection, column, read)))
        if ids:
            listed_ids = ", ".join(ids[:MAX_LISTED]) + (", …" if len(ids) > MAX_LISTED else "")
            quoted = ", ".join("'{}'".format(id_.replace("'", "''")) for id_ in ids[:MAX_LISTED])
            give_up = (
                f"UPDATE {column.table.name} SET {column.name} = NULL "  # noqa: S608 - for people to read
                f"WHERE measurement_id IN ({quoted});"
            )
            raise StoreError(
                f"{column.name} of {pluralize(len(ids), 'measurement')} is damaged: {listed_ids}",
                where=display_url(connection.engine.url),
                hint="Put the database back from a backup; or give these values up, and then run "
                f"'treehammer db rebuild':\n  {give_up}",
            )


def _find_damaged_values(
    connection: Connection, column: sa.Column[Any], read: Callable[[Any], object]
) -> Iterator[str]:
    # Untyped, because SQLite may return text from a binary column.
    value = sa.type_coerce(column, sa.types.NullType())
    query = sa.select(column.table.c.measurement_id, value).where(column.is_not(None))
    with connection.execute(query.execution_options(yield_per=FETCH_ROWS)) as rows:
        for id_, stored_value in rows:
            try:
                read(stored_value)
            except (DamagedValueError, TypeError):
                yield str(id_)
