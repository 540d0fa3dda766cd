"""A whole database into another one, of the same or of another kind, proven row by row."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import islice, zip_longest
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.errors import ConfigError, StoreError
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.backend import display_url, sqlite_path, translate_errors
from treehammer.sql.engine.database_engine import (
    backend_of,
    parse_url,
    read_transaction,
    write_transaction,
)
from treehammer.sql.engine.database_setup import count_rows, opened_engine
from treehammer.sql.read.measurement_queries import FETCH_ROWS
from treehammer.text_formatting import ProgressCallback, ProgressFactory

#: Rows that are written at once.
CHUNK = 500


def copy_database(
    source: str, target: str, *, bars: ProgressFactory
) -> tuple[dict[str, int], bool]:
    """Copy all tables, then compare every row; the target has all of it afterwards, or nothing.

    Both sides stay usable: the source is read in one state, unaffected by concurrent writes.

    Args:
        source: SQLAlchemy URL of the database to copy.
        target: URL of the one to fill; it is made when there is none.
        bars: opens the bars that move with the rows.

    Returns:
        how many rows each table has, and whether they were copied: false when the target held
        just these rows before.

    Raises:
        ConfigError: a URL is wrong, or both mean the same database.
        NothingToDoError: there is no database to copy.
        StoreError: the target holds other rows, or a database refuses; the target is as it was.
    """
    url = parse_url(target)
    if url.get_backend_name() == "sqlite" and sqlite_path(url) is None:
        raise ConfigError(
            "a database in memory is gone when the command ends",
            where=target,
            hint="Name a file: sqlite:////home/me/copy.db",
        )
    with opened_engine(source, create=False) as from_, opened_engine(target, create=True) as to:
        _require_distinct(from_, to)
        with read_transaction(from_) as old, write_transaction(to) as new:
            counts = count_rows(old)
            total = sum(counts.values())
            empty = not any(count_rows(new).values())
            if empty:
                with bars("Copying", total) as step:
                    _copy_tables(old, new, step)
            with bars("Comparing", total) as step:
                different = _find_difference(old, new, step)
            if different:
                # An error rolls back the copy.
                raise StoreError(
                    f"the copy differs from the source: {different}"
                    if empty
                    else f"the database to fill holds other rows: {different}",
                    where=display_url(to.url),
                    hint="It is as it was before. "
                    + ("Look for triggers on its tables." if empty else "Give an empty one."),
                )
    return counts, empty


def _require_distinct(from_: Engine, to: Engine) -> None:
    """Refuse two addresses of one database: a copy that is none would be taken for one."""
    old, new = sqlite_path(from_.url), sqlite_path(to.url)
    same_file = old is not None and new is not None and old.samefile(new)
    with read_transaction(from_) as source, read_transaction(to) as target:
        identity = backend_of(from_).identity(source)
        same_server = identity == backend_of(to).identity(target) != ()
    if same_file or same_server or from_.url == to.url:
        raise ConfigError(
            "both addresses mean the same database", where=display_url(to.url), hint="Give two."
        )


def _copy_tables(old: Connection, new: Connection, step: ProgressCallback) -> None:
    count = 0
    for table in metadata.sorted_tables:
        with closing(_iter_rows(old, table)) as rows:
            while chunk := [
                dict(zip(table.columns.keys(), row, strict=True)) for row in islice(rows, CHUNK)
            ]:
                new.execute(sa.insert(table), chunk)
                count += len(chunk)
                step(count, table.name)


def _find_difference(old: Connection, new: Connection, step: ProgressCallback) -> str:
    """Describe the first row that differs; '' if none does."""
    count = 0
    for table in metadata.sorted_tables:
        with (
            closing(_iter_rows(old, table)) as old_rows,
            closing(_iter_rows(new, table)) as new_rows,
        ):
            for old_row, new_row in zip_longest(old_rows, new_rows):
                if old_row is None or new_row is None or tuple(old_row) != tuple(new_row):
                    row = old_row if new_row is None else new_row
                    key = [f"{column.name} {row._mapping[column]}" for column in table.primary_key]
                    return f"table {table.name}, {', '.join(key)}"
                count += 1
                if not count % CHUNK:
                    step(count, table.name)
    step(count)
    return ""


def _iter_rows(connection: Connection, table: sa.Table) -> Generator[sa.Row[Any], None, None]:
    """Yield all rows by their key, which sorts alike in every database."""
    query = sa.select(table).order_by(*table.primary_key.columns)
    with (
        translate_errors(connection.engine.url),
        connection.execute(query.execution_options(yield_per=FETCH_ROWS)) as rows,
    ):
        yield from rows
