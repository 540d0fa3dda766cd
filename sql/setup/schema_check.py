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
    layout = backend_of(connection.engine).read_layout(connection)
    missing_parts = list(_find_missing_parts(layout))
    missing = [*missing_parts, *(f"index {index.name}" for index in find_missing_indexes(layout))]
    if not missing:
        return
    raise StoreError(
        f"the database lacks {', '.join(missing[:MAX_LISTED])}{', …' if len(missing) > MAX_LISTED else ''}",
        where=display_url(connection.engine.url),
        hint="It is not as Treehammer made it. Put it back from a backup; or begin with an empty "
        "one and run 'treehammer collect': the records of jobs stay in the spool."
        if missing_parts
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


def find_missing_indexes(layout: TableLayout) -> list[sa.Index]:
    """List indexes missing under any name, for tables that have their columns."""
    return [
        index
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=lambda table_index: str(table_index.name))
        if _column_names(index) not in layout.indexes.get(table.name, ())
        and set(_column_names(index)) <= layout.columns.get(table.name, set())
    ]


def _find_missing_parts(layout: TableLayout) -> Iterator[str]:
    for table in metadata.sorted_tables:
        if table.name not in layout.columns:
            yield f"table {table.name}"
            continue
        for column in table.columns:
            if column.name not in layout.columns[table.name]:
                yield f"column {table.name}.{column.name}"
        if _column_names(table.primary_key) != layout.keys.get(table.name):
            yield f"the primary key of {table.name}"


def _column_names(of: sa.Index | sa.PrimaryKeyConstraint) -> tuple[str, ...]:
    return tuple(column.name for column in of.columns)
