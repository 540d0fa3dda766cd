"""Check for missing tables, columns, keys and indexes.

The revision only records changes by Treehammer; this check also detects changes by others.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.errors import StoreError
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.backends import backend_of
from treehammer.sql.engine.backends.generic import TableLayout
from treehammer.sql.engine.database_errors import display_url

#: Number of missing items that a message names.
MAX_LISTED = 10


def require_complete_schema(connection: Connection) -> None:
    """Refuse a database of this revision with an incomplete schema; additional items are allowed.

    Raises:
        StoreError: items are missing; the message names them and the remedy.
    """
    there = backend_of(connection.engine).read_layout(connection)
    lost = list(_find_missing_parts(there))
    found = [*lost, *(f"index {index.name}" for index in find_missing_indexes(there))]
    if not found:
        return
    raise StoreError(
        f"the database lacks {', '.join(found[:MAX_LISTED])}{', …' if len(found) > MAX_LISTED else ''}",
        where=display_url(connection.engine.url),
        hint="It is not as Treehammer made it. Put it back from a backup; or begin with an empty "
        "one and run 'treehammer collect': the records of jobs stay in the spool."
        if lost
        else "Run: treehammer db upgrade",
    )


def create_missing_indexes(connection: Connection) -> None:
    """Create missing indexes; nothing else can be recreated.

    Raises:
        StoreError: anything else is missing.
    """
    for index in find_missing_indexes(backend_of(connection.engine).read_layout(connection)):
        index.create(connection)
    require_complete_schema(connection)


def find_missing_indexes(there: TableLayout) -> list[sa.Index]:
    """List indexes missing under any name, for tables that have their columns."""
    return [
        index
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=lambda one: str(one.name))
        if _column_names(index) not in there.indexes.get(table.name, ())
        and set(_column_names(index)) <= there.columns.get(table.name, set())
    ]


def _find_missing_parts(there: TableLayout) -> Iterator[str]:
    for table in metadata.sorted_tables:
        if table.name not in there.columns:
            yield f"table {table.name}"
            continue
        for column in table.columns:
            if column.name not in there.columns[table.name]:
                yield f"column {table.name}.{column.name}"
        if _column_names(table.primary_key) != there.keys.get(table.name):
            yield f"the primary key of {table.name}"


def _column_names(of: sa.Index | sa.PrimaryKeyConstraint) -> tuple[str, ...]:
    return tuple(column.name for column in of.columns)
