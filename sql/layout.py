"""Whether a database has all tables, columns, keys and indexes that this version works with.

Its revision only tells what Treehammer did to it; what others did, its tables tell.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.errors import StoreError
from treehammer.sql.backends import backend_of
from treehammer.sql.backends.plain import Layout
from treehammer.sql.schema import metadata
from treehammer.sql.troubles import shown

#: How many of what is missing a message names.
NAMED = 10


def require_layout(connection: Connection) -> None:
    """Refuse a database of this revision that lacks something; what it has more is its own matter.

    Raises:
        StoreError: it lacks something; the message names it, and says how to come by it.
    """
    there = backend_of(connection.engine).layout(connection)
    lost = list(_lost(there))
    found = [*lost, *(f"index {index.name}" for index in missing_indexes(there))]
    if not found:
        return
    raise StoreError(
        f"the database lacks {', '.join(found[:NAMED])}{', …' if len(found) > NAMED else ''}",
        where=shown(connection.engine.url),
        hint="It is not as Treehammer made it. Put it back from a backup; or begin with an empty "
        "one and run 'treehammer collect': the records of jobs stay in the spool."
        if lost
        else "Run: treehammer db upgrade",
    )


def complete(connection: Connection) -> None:
    """Make the indexes that are missing; nothing else can be made again.

    Raises:
        StoreError: more is missing.
    """
    for index in missing_indexes(backend_of(connection.engine).layout(connection)):
        index.create(connection)
    require_layout(connection)


def missing_indexes(there: Layout) -> list[sa.Index]:
    """Indexes that are not there under any name, of tables that have their columns."""
    return [
        index
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=lambda one: str(one.name))
        if _columns(index) not in there.indexes.get(table.name, ())
        and set(_columns(index)) <= there.columns.get(table.name, set())
    ]


def _lost(there: Layout) -> Iterator[str]:
    for table in metadata.sorted_tables:
        if table.name not in there.columns:
            yield f"table {table.name}"
            continue
        for column in table.columns:
            if column.name not in there.columns[table.name]:
                yield f"column {table.name}.{column.name}"
        if _columns(table.primary_key) != there.keys.get(table.name):
            yield f"the primary key of {table.name}"


def _columns(of: sa.Index | sa.PrimaryKeyConstraint) -> tuple[str, ...]:
    return tuple(column.name for column in of.columns)
