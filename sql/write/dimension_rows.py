"""Rows of dimensions: missing ones are inserted, and ids known to be stored are not looked up again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.collectors.record.metric_catalogue import Value
from treehammer.sql.core.dimensions import DIMENSIONS
from treehammer.sql.core.outcomes import literal_text
from treehammer.sql.core.schema import dimension_tables
from treehammer.sql.engine.backends import backend_of

#: Maximum number of ids in a cache, about 10 MB; when it is full, it starts again.
MAX_CACHED_IDS = 100_000

#: Name of the dimension, and id of the row.
RowKey = tuple[str, int]


class DimensionCache:
    """Rows that committed transactions have found or inserted.

    Treehammer never changes or deletes a row of a dimension, and its id is a hash of its content: an
    entry stays valid while other processes write. If rows are deleted by hand, the foreign
    keys of the measurements refuse a stale entry; see :meth:`.Store.add`.
    """

    def __init__(self) -> None:
        self._keys: set[RowKey] = set()

    def __contains__(self, key: RowKey) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def update(self, keys: Iterable[RowKey]) -> None:
        """Add rows of a committed transaction."""
        if len(self._keys) > MAX_CACHED_IDS:
            self.clear()
        self._keys.update(keys)

    def clear(self) -> None:
        """Forget all rows."""
        self._keys = set()


_CACHES: WeakKeyDictionary[Engine, DimensionCache] = WeakKeyDictionary()


def cache_of(engine: Engine) -> DimensionCache:
    """Return the cache of an engine's database."""
    return _CACHES.setdefault(engine, DimensionCache())


class DimensionWriter:
    """Inserts missing rows within one transaction.

    Args:
        known: cache, which is only read; add :attr:`found` to it after the commit.
    """

    def __init__(self, cache: DimensionCache | None = None) -> None:
        self._known = DimensionCache() if cache is None else cache
        #: Rows that this transaction has found or inserted.
        self.found: set[RowKey] = set()

    def set_keys(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Insert missing rows, and set their ids in the measurements' rows.

        Args:
            connection: connection of a write transaction.
            rows: values of at most :data:`~.recording.BATCH_MEASUREMENTS` measurements, as a
                database returns them; to complete.
        """
        needed: dict[RowKey, Mapping[str, Value]] = {}
        for dimension in DIMENSIONS:
            name, key, find_id = dimension.name, dimension.key, dimension.find_id
            for row in rows:
                row[key] = id_ = find_id(row)
                needed[name, id_] = row
        self.insert_missing(connection, needed)

    def insert_missing(
        self, connection: Connection, needed: Mapping[RowKey, Mapping[str, Value]]
    ) -> None:
        """Insert the rows that are missing; each comes with the values of a measurement."""
        unknown = [key for key in needed if key not in self._known and key not in self.found]
        if not unknown:
            return
        stored = _fetch_stored(connection, unknown)
        self.found.update(unknown)
        for dimension in DIMENSIONS:
            missing = [
                dimension.extract_row(needed[key])
                for key in unknown
                if key[0] == dimension.name and key not in stored
            ]
            if missing:
                table = dimension_tables[dimension.name]
                backend_of(connection.engine).insert_rows(connection, table, missing)


def _fetch_stored(connection: Connection, keys: Sequence[RowKey]) -> set[RowKey]:
    ids: dict[str, list[int]] = {dimension.name: [] for dimension in DIMENSIONS}
    for name, id_ in keys:
        ids[name].append(id_)
    rows = backend_of(connection.engine).fetch_rows(connection, _SELECT_STORED, ids)
    return {(name, id_) for name, id_ in rows}


def _select_stored() -> sa.CompoundSelect[Any]:
    """Select the stored ids among the parameters, which are named as their dimensions."""
    queries = []
    for name, table in dimension_tables.items():
        id_ = table.c.id
        ids: sa.BindParameter[int] = sa.bindparam(name, expanding=True)
        queries.append(sa.select(literal_text(name), id_).where(id_.in_(ids)))
    return sa.union_all(*queries)


_SELECT_STORED = _select_stored()
