"""Mapping between dataclasses of ``rows`` and ``watch_rows`` and rows of their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from typing import Any, TypeVar, get_type_hints

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.core.rows import PairRow, StoredRow, VerdictRow
from treehammer.sql.engine.database_engine import backend_of

Row = TypeVar("Row", bound=StoredRow)
Id = TypeVar("Id")
#: Rows per lookup and write; an IN list may hold 1000 on Oracle.
CHUNK_ROWS = 1000


@cache
def _list_fields(kind: Callable[..., StoredRow]) -> list[tuple[str, bool]]:
    """List the fields of a row class, each with a flag for text."""
    return [(name, hint is str) for name, hint in get_type_hints(kind).items()]


def fetch_rows(connection: Connection, kind: type[Row], query: sa.Select[Any]) -> list[Row]:
    """Fetch the rows of a query as dataclasses; unknown text becomes ''."""
    rows = connection.execute(query).all()
    if not rows:
        return []
    columns = dict(zip(query.selected_columns.keys(), zip(*rows, strict=True), strict=True))
    build: Callable[..., Row] = kind
    fields = _list_fields(build)
    values = [
        [text or "" for text in columns[name]] if is_text else columns[name]
        for name, is_text in fields
    ]
    names = [name for name, _ in fields]
    return [_build_row(kind, names, cells) for cells in zip(*values, strict=True)]


def _build_row(kind: type[Row], names: Sequence[str], cells: Iterable[Any]) -> Row:
    # The constructor of a frozen dataclass sets each field by a call, for as long as fetching takes.
    row = kind.__new__(kind)
    vars(row).update(zip(names, cells))  # noqa: B905 - it takes longer with strict
    return row


def split_ids(ids: Iterable[Id]) -> Iterator[list[Id]]:
    """Split distinct identities into lists that an IN list may hold."""
    distinct = list(dict.fromkeys(ids))
    return (distinct[start : start + CHUNK_ROWS] for start in range(0, len(distinct), CHUNK_ROWS))


def select_latest(
    table: sa.Table,
    by: Sequence[sa.ColumnElement[Any]],
    order: Sequence[sa.ColumnElement[Any]],
    *conditions: sa.ColumnElement[bool],
) -> sa.Select[Any]:
    """Select the last row, in an order, of those with the same values of some columns."""
    newest = [column.desc() for column in order]
    place = sa.func.row_number().over(partition_by=by, order_by=newest)
    ranked = sa.select(table.c.id, place.label("place")).where(*conditions).subquery("ranked")
    return sa.select(table).where(table.c.id.in_(sa.select(ranked.c.id).where(ranked.c.place == 1)))


def insert_new_rows(connection: Connection, table: sa.Table, rows: Iterable[StoredRow]) -> None:
    """Insert rows whose keys are known to be missing."""
    remaining = iter(rows)
    while chunk := [vars(row) for row in islice(remaining, CHUNK_ROWS)]:
        backend_of(connection.engine).insert_rows(connection, table, chunk)


def insert_missing_rows(connection: Connection, table: sa.Table, rows: Iterable[StoredRow]) -> None:
    """Insert the rows whose keys are missing."""
    _write_rows(connection, table, rows, replace=False)


def upsert_rows(connection: Connection, table: sa.Table, rows: Iterable[StoredRow]) -> None:
    """Insert rows, or update those with the same key."""
    _write_rows(connection, table, rows, replace=True)


def replace_comparison_rows(
    connection: Connection,
    table: sa.Table,
    comparison_id: str,
    rows: Sequence[PairRow | VerdictRow],
) -> None:
    """Replace the rows of a comparison, keeping their order."""
    connection.execute(sa.delete(table).where(table.c.comparison_id == comparison_id))
    values = [
        {**asdict(row), "comparison_id": comparison_id, "line": line}
        for line, row in enumerate(rows)
    ]
    if values:
        connection.execute(sa.insert(table), values)


def select_comparison_rows(table: sa.Table, comparison_id: str) -> sa.Select[Any]:
    """Select the rows of a comparison in order."""
    return sa.select(table).where(table.c.comparison_id == comparison_id).order_by(table.c.line)


def _write_rows(
    connection: Connection, table: sa.Table, rows: Iterable[StoredRow], *, replace: bool
) -> None:
    remaining = iter(rows)
    while chunk := [asdict(row) for row in islice(remaining, CHUNK_ROWS)]:
        _write_chunk(connection, table, chunk, replace=replace)


def _write_chunk(
    connection: Connection, table: sa.Table, chunk: Sequence[dict[str, Any]], *, replace: bool
) -> None:
    # UPDATE, then INSERT of missing rows: upsert syntax differs between databases.
    rows_by_key = _index_rows(table, chunk, last=replace)
    existing_keys = _fetch_keys(connection, table, rows_by_key)
    if missing := [
        values for identity, values in rows_by_key.items() if identity not in existing_keys
    ]:
        connection.execute(sa.insert(table), missing)
    if replace:
        _update_rows(
            connection,
            table,
            [rows_by_key[identity] for identity in rows_by_key if identity in existing_keys],
        )


def _index_rows(
    table: sa.Table, rows: Iterable[dict[str, Any]], *, last: bool
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Map primary keys to the first row of each, or to the last."""
    key = [column.key for column in table.primary_key]
    rows_by_key: dict[tuple[Any, ...], dict[str, Any]] = {}
    for values in rows:
        identity = tuple(map(values.__getitem__, key))
        if last or identity not in rows_by_key:
            rows_by_key[identity] = values
    return rows_by_key


def _fetch_keys(
    connection: Connection, table: sa.Table, keys: Iterable[tuple[Any, ...]]
) -> set[tuple[Any, ...]]:
    """Fetch the primary keys of stored rows that share the first part of a wanted key."""
    key_columns = list(table.primary_key)
    query = sa.select(*key_columns).where(key_columns[0].in_({identity[0] for identity in keys}))
    return {tuple(row) for row in connection.execute(query)}


def _update_rows(
    connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    if not rows:
        return
    # Parameters need distinct names, because SET uses those of the columns.
    key = {column.key: f"key_{column.key}" for column in table.primary_key}
    has_key = sa.and_(*(table.c[name] == sa.bindparam(key[name]) for name in key))
    parameters = [{**row, **{key[name]: row[name] for name in key}} for row in rows]
    connection.execute(sa.update(table).where(has_key), parameters)
