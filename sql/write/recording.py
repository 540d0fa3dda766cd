"""Insertion of measurements, each exactly once regardless of repeated uploads.

Missing rows of dimensions are inserted first; identities known to be stored are not looked up again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, RowMapping

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Value
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_columns import (
    ALL_COLUMNS,
    DIMENSIONS,
    PASSES_COLUMN,
    SUBJECT,
    pack_lists,
    unpack_lists,
)
from treehammer.sql.core.measurement_sql import literal_text
from treehammer.sql.core.rows import FlagRow
from treehammer.sql.core.schema import dimension_tables, extra, measurement, quality_flag
from treehammer.sql.engine.database_engine import insert_missing_rows, insert_values
from treehammer.sql.read.measurement_queries import OperationRow, fetch_operations_of
from treehammer.sql.write import maintenance, operation_recording, quality_flags, rollups

#: Maximum number of ids in a cache, about 10 MB; when it is full, it starts again.
MAX_CACHED_IDS = 100_000
#: Name of the dimension, and id of the row.
RowKey = tuple[str, int]
_CACHES: WeakKeyDictionary[Engine, DimensionCache] = WeakKeyDictionary()
#: Measurements that are looked up and inserted together; an IN list may hold 1000 on Oracle.
BATCH_MEASUREMENTS = 500
#: Measurements per transaction. The more share one, the fewer times a row of the roll-ups changes.
TRANSACTION_MEASUREMENTS = 4 * BATCH_MEASUREMENTS
_UNKNOWN_VALUES: dict[str, Value] = dict.fromkeys((metric.name for metric in CATALOGUE), None)
_TEXT_COLUMNS, _FLOAT_COLUMNS, _FLOAT_LIST_COLUMNS = (
    tuple(metric.name for metric in CATALOGUE if metric.type == kind)
    for kind in ("text", "float", "floats")
)
_pick_texts, _pick_floats, _pick_float_lists = (
    itemgetter(*names) for names in (_TEXT_COLUMNS, _FLOAT_COLUMNS, _FLOAT_LIST_COLUMNS)
)
_SELECT_IDS = sa.select(measurement.c.measurement_id).where(
    measurement.c.measurement_id.in_(sa.bindparam("ids", expanding=True))
)


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


def cache_of(engine: Engine) -> DimensionCache:
    """Return the cache of an engine's database."""
    return _CACHES.setdefault(engine, DimensionCache())


class DimensionWriter:
    """Inserts missing rows within one transaction.

    Args:
        cache: stored rows, only read; add :attr:`present_keys` to it after the commit.
    """

    def __init__(self, cache: DimensionCache | None = None) -> None:
        self._cache = DimensionCache() if cache is None else cache
        #: Rows that this transaction has found or inserted.
        self.present_keys: set[RowKey] = set()

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
        unknown = [key for key in needed if key not in self._cache and key not in self.present_keys]
        if not unknown:
            return
        stored = _fetch_stored(connection, unknown)
        self.present_keys.update(unknown)
        for dimension in DIMENSIONS:
            missing = [
                dimension.extract_row(needed[key])
                for key in unknown
                if key[0] == dimension.name and key not in stored
            ]
            if missing:
                table = dimension_tables[dimension.name]
                insert_values(connection, table, missing)


def _fetch_stored(connection: Connection, keys: Sequence[RowKey]) -> set[RowKey]:
    ids: dict[str, list[int]] = {dimension.name: [] for dimension in DIMENSIONS}
    for name, id_ in keys:
        ids[name].append(id_)
    rows = connection.execute(_SELECT_STORED, ids)
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


@dataclass(frozen=True)
class AddResult:
    """Counts of new, known and conflicting measurements after an insertion.

    ``known`` were already stored with the same content, except for columns removed by retention.
    ``conflicting`` were already stored with different content; the first recorded content stays.
    ``known_ids`` lists known identities, one entry per occurrence.
    """

    new: int
    known: int
    conflicting: tuple[str, ...] = ()
    known_ids: tuple[str, ...] = field(default=(), compare=False, repr=False)


def sum_results(parts: Iterable[AddResult]) -> AddResult:
    """Sum the results of several batches."""
    new = 0
    known_ids: list[str] = []
    conflicting: list[str] = []
    for part in parts:
        new += part.new
        known_ids += part.known_ids
        conflicting += part.conflicting
    return AddResult(new, len(known_ids), tuple(conflicting), tuple(known_ids))


@dataclass(frozen=True)
class _MeasurementContent:
    """Measurement in the database's representation, for comparing two of one identity.

    ``flags`` are those that came with it. The values leave out the later ones.
    """

    values: dict[str, Any]
    extras: Mapping[str, float]
    operations: Sequence[OperationRow] = ()
    flags: Sequence[FlagRow] = field(default=(), compare=False)


def add_measurements(
    connection: Connection,
    measurements: Iterable[Measurement],
    dimensions: DimensionWriter | None,
) -> AddResult:
    """Write measurements inside the transaction of ``connection``.

    Without ``dimensions`` the result is only predicted.
    """
    writer = _TransactionWriter(connection, dimensions)
    added = sum_results(
        writer.add_batch(batch) for batch in split_batches(measurements, BATCH_MEASUREMENTS)
    )
    writer.finish()
    return added


def split_batches(measurements: Iterable[Measurement], size: int) -> Iterator[list[Measurement]]:
    """Split measurements into lists of at most ``size``."""
    remaining = iter(measurements)
    while batch := list(islice(remaining, size)):
        yield batch


class _TransactionWriter:
    """Writes batches of measurements, and at the end the roll-ups of their days and subjects.

    Args:
        connection: connection of the transaction.
        dimensions: of the transaction; None to predict the results only.
    """

    def __init__(self, connection: Connection, dimensions: DimensionWriter | None) -> None:
        self._connection, self._dimensions = connection, dimensions
        self._owners: set[rollups.Owner] = set()
        # Later flags of known measurements that were copied from another store, by identity.
        self._copied_flags: dict[str, list[FlagRow]] = {}
        # New measurements of later attempts.
        self._later_ids: list[str] = []

    def add_batch(self, batch: Sequence[Measurement]) -> AddResult:
        """Write one batch, except for its roll-ups."""
        new: dict[str, _MeasurementContent] = {}
        added = self._sort_batch(batch, new)
        if self._dimensions is not None and new:
            _insert_measurements(self._connection, new, self._dimensions)
            values = [content.values for content in new.values()]
            self._owners.update((v["day"], v[SUBJECT.key]) for v in values)
            self._later_ids += [v["measurement_id"] for v in values if (v["attempt"] or 0) > 1]
        return added

    def finish(self) -> None:
        """Rebuild the roll-ups, then apply flags, which change them."""
        if self._dimensions is not None:
            superseded = rollups.find_superseded_owners(self._connection, self._later_ids)
            rollups.rebuild_rollups(self._connection, self._owners | superseded)
            quality_flags.copy_flags(self._connection, self._copied_flags)
            quality_flags.flag_outliers(self._connection, self._owners)

    def _sort_batch(
        self, batch: Sequence[Measurement], new: dict[str, _MeasurementContent]
    ) -> AddResult:
        """Select the new measurements, and compare the others with the stored ones."""
        stored = _fetch_recorded(self._connection, [item.id for item in batch])
        known_ids: list[str] = []
        conflicting: list[str] = []
        for item in batch:
            content = _normalize_content(item)
            before = stored.setdefault(item.id, content)
            if before is content:
                new[item.id] = content
            elif _is_same_content(before, content):
                known_ids.append(item.id)
                if later := [flag for flag in content.flags if flag.is_later]:
                    self._copied_flags[item.id] = later
            else:
                conflicting.append(item.id)
        return AddResult(len(new), len(known_ids), tuple(conflicting), tuple(known_ids))


def _is_same_content(first: _MeasurementContent, second: _MeasurementContent) -> bool:
    """Compare two contents, ignoring columns that retention removed from either of them."""
    if first == second:
        return True
    if maintenance.is_merge_of(first.operations, second.operations):
        second = replace(second, operations=first.operations)
    elif maintenance.is_merge_of(second.operations, first.operations):
        first = replace(first, operations=second.operations)
    pruned = [n for n in maintenance.PRUNED_COLUMNS if None in (first.values[n], second.values[n])]
    return _drop_values(first, pruned) == _drop_values(second, pruned)


def _drop_values(content: _MeasurementContent, names: Iterable[str]) -> _MeasurementContent:
    return replace(content, values={**content.values, **dict.fromkeys(names)})


def _normalize_content(item: Measurement) -> _MeasurementContent:
    """Normalize values as a database does: '' to None, whole numbers to float in float columns.

    A record without a storage site read that of its own site.
    """
    # Imported measurements have every name, so that they can be copied as a whole.
    is_complete = len(item.values) == len(_UNKNOWN_VALUES)
    values: dict[str, Any] = {**item.values} if is_complete else {**_UNKNOWN_VALUES, **item.values}
    _normalize_values(values)
    flags = quality_flags.make_flags(values)
    values["storage_site"] = values["storage_site"] or values["site"]
    extras = {name: float(value) for name, value in item.extras.items()}
    operations = [operation_recording.normalize_operation(row) for row in item.operations]
    return _MeasurementContent(values, extras, operations, flags)


def _normalize_values(values: dict[str, Any]) -> None:
    """Normalize values in place.

    Few change, so those of one kind are examined together, which is faster than each by its name.
    """
    if "" in _pick_texts(values):
        values |= {name: values[name] or None for name in _TEXT_COLUMNS}
    if int in map(type, _pick_floats(values)):
        values |= {name: float(values[name]) for name in _FLOAT_COLUMNS if values[name] is not None}
    if int in map(type, chain.from_iterable(filter(None, _pick_float_lists(values)))):
        lists = ((name, values[name]) for name in _FLOAT_LIST_COLUMNS)
        values |= {name: list(map(float, numbers)) for name, numbers in lists if numbers}


def _fetch_recorded(connection: Connection, ids: Iterable[str]) -> dict[str, _MeasurementContent]:
    id_ = measurement.c.measurement_id
    # Most are new, which the key's index alone shows.
    known_ids = connection.scalars(_SELECT_IDS, {"ids": list(set(ids))}).all()
    if not known_ids:
        return {}
    extras: dict[str, dict[str, float]] = {}
    for owner, name, value in connection.execute(
        sa.select(extra.c.measurement_id, extra.c.name, extra.c.value).where(
            extra.c.measurement_id.in_(known_ids)
        )
    ):
        extras.setdefault(owner, {})[name] = value
    operations = fetch_operations_of(connection, known_ids)
    flags = quality_flags.fetch_flags(connection, known_ids)
    rows = connection.execute(
        measurement_sql.select_columns(ALL_COLUMNS).where(id_.in_(known_ids))
    ).mappings()
    return {
        row["measurement_id"]: _MeasurementContent(
            _unpack_row(row, flags.get(row["measurement_id"], ())),
            extras.get(row["measurement_id"], {}),
            operations[row["measurement_id"]],
        )
        for row in rows
    }


def _unpack_row(row: RowMapping, flags: Sequence[FlagRow]) -> dict[str, Value]:
    values = {**row, **unpack_lists(row[PASSES_COLUMN])}
    del values[PASSES_COLUMN]
    values.update(quality_flags.summarize_flags(flag for flag in flags if not flag.is_later))
    # It may have been judged by fewer rules, or other ones.
    quality_flags.make_flags(values)
    return values


def _insert_measurements(
    connection: Connection,
    new: Mapping[str, _MeasurementContent],
    dimensions: DimensionWriter,
) -> None:
    # The values themselves become the rows: to copy them takes longer than anything else here.
    rows = [content.values for content in new.values()]
    for content in new.values():
        content.values.update(quality_flags.summarize_flags(content.flags))
    dimensions.set_keys(connection, rows)
    for row in rows:
        row[PASSES_COLUMN] = pack_lists(row)
    insert_values(connection, measurement, rows)
    _insert_extras(connection, new)
    flags = [flag for content in new.values() for flag in content.flags]
    insert_missing_rows(connection, quality_flag, flags)
    operations = {id_: content.operations for id_, content in new.items() if content.operations}
    operation_recording.insert_operations(connection, operations)


def _insert_extras(connection: Connection, new: Mapping[str, _MeasurementContent]) -> None:
    extras = [
        {"measurement_id": id_, "name": name, "value": value}
        for id_, content in new.items()
        for name, value in content.extras.items()
    ]
    insert_values(connection, extra, extras)
