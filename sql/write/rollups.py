"""Roll-ups: counts, sums and squares by day and subject, updated with every measurement.

A page over a year of results reads some thousand of these rows instead of ten million
measurements. They can be rebuilt from the measurements at any time, which also verifies them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import LATENCY_BINS
from treehammer.collectors.record.outcome import label_outcome
from treehammer.sql.core.metric_sums import (
    HISTOGRAM_COLUMN,
    MAX_CREDIBLE,
    credible_value,
    filled_bins,
    moment_sums,
    parse_bins,
)
from treehammer.sql.core.outcomes import UNKNOWN_KIND, literal_text, outcome_column
from treehammer.sql.core.packing import encode_numbers
from treehammer.sql.core.schema import (
    ROLLUP_METRICS,
    measurement,
    rollup_column_names,
    rollup_day,
)
from treehammer.sql.write import operation_rollups

#: Relative tolerance for sums computed in a different order.
RELATIVE_TOLERANCE = 1e-9
#: Keys per lookup; an IN list may hold 1000 on Oracle.
CHUNK = 500

#: Key columns that define the unit of a rebuild: all rows of an owner are rebuilt together.
OWNER_COLUMNS = ("day", "subject_id")
KEY_COLUMNS = (*OWNER_COLUMNS, "kind", "outcome")


class RollupKey(NamedTuple):
    """Key of a roll-up row."""

    day: int
    subject_id: int
    kind: str
    outcome: str


class _RollupSums:
    """Sums over many measurements of one key."""

    def __init__(self) -> None:
        self.values: dict[str, float] = dict.fromkeys(_ADDED_COLUMNS, 0)
        self.reads = [0] * LATENCY_BINS

    def add(self, values: Mapping[str, Any]) -> None:
        mine = self.values
        mine["measurements"] += 1
        for number, total, squares, name in _METRIC_COLUMNS:
            value = values[name]
            if value is not None and -MAX_CREDIBLE <= value <= MAX_CREDIBLE:
                real = float(value)
                mine[number] += 1
                mine[total] += real
                mine[squares] += real * real
        for place, reads in filled_bins(values[HISTOGRAM_COLUMN] or ()):
            self.reads[place] += reads

    def add_histogram(self, histogram: Sequence[int]) -> None:
        """Add the histogram of an existing row."""
        for place, reads in enumerate(histogram):
            self.reads[place] += reads

    @property
    def histogram(self) -> list[int]:
        """Return the sums of the bins, up to the last filled one."""
        last = max((place for place, reads in enumerate(self.reads) if reads), default=-1)
        return self.reads[: last + 1]


_METRIC_COLUMNS = tuple((*rollup_column_names(name), name) for name in ROLLUP_METRICS)
_ADDED_COLUMNS = ("measurements", *(name for *three, _ in _METRIC_COLUMNS for name in three))


_KEY_COLUMNS = tuple(rollup_day.c[name] for name in KEY_COLUMNS)
# Parameters need distinct names, because SET uses those of the columns.
_ADD_SUMS = (
    sa.update(rollup_day)
    .where(*(column == sa.bindparam(f"key_{column.name}") for column in _KEY_COLUMNS))
    .values(
        {name: rollup_day.c[name] + sa.bindparam(f"more_{name}") for name in _ADDED_COLUMNS}
        | {HISTOGRAM_COLUMN: sa.bindparam("reads")}
    )
)
_ADD_SUMS_AND_READS = (
    sa.update(rollup_day)
    .where(*(column == sa.bindparam(f"key_{column.name}") for column in _KEY_COLUMNS))
    .values({HISTOGRAM_COLUMN: sa.bindparam("reads")})
)


def rollup_key(values: Mapping[str, Any], subject_id: int) -> RollupKey:
    """Return the key of the row that a measurement belongs to."""
    kind = values["kind"] or UNKNOWN_KIND
    return RollupKey(values["day"], subject_id, kind, label_outcome(values))


def add_to_rollups(
    connection: Connection, measured: Iterable[tuple[int, Mapping[str, Any]]]
) -> None:
    """Add new measurements, each with its subject's number, inside the write transaction."""
    sums: defaultdict[RollupKey, _RollupSums] = defaultdict(_RollupSums)
    for subject_id, values in measured:
        sums[rollup_key(values, subject_id)].add(values)
    known = dict(_fetch_histograms(connection, sums))
    old, new = [], []
    for key, one in sums.items():
        if key in known:
            one.add_histogram(known[key])
            more = {f"more_{name}": value for name, value in one.values.items()}
            old.append({**_key_parameters(key), **more, "reads": one.histogram})
        else:
            new.append({**key._asdict(), **one.values, HISTOGRAM_COLUMN: one.histogram})
    if old:
        connection.execute(_ADD_SUMS, old)
    if new:
        connection.execute(sa.insert(rollup_day), new)


def _key_parameters(key: Sequence[object]) -> dict[str, object]:
    return {f"key_{name}": value for name, value in zip(KEY_COLUMNS, key, strict=True)}


def _fetch_histograms(
    connection: Connection, wanted: Iterable[RollupKey]
) -> Iterator[tuple[RollupKey, Sequence[int]]]:
    """Fetch the histograms of existing rows, among other rows of the same days."""
    subjects: dict[int, set[int]] = {}
    for key in wanted:
        subjects.setdefault(key.day, set()).add(key.subject_id)
    for day, ids in subjects.items():
        waiting = iter(ids)
        while some := list(islice(waiting, CHUNK)):
            found = sa.select(*_KEY_COLUMNS, rollup_day.c[HISTOGRAM_COLUMN]).where(
                rollup_day.c.day == day, rollup_day.c.subject_id.in_(some)
            )
            for *parts, histogram in connection.execute(found):
                yield RollupKey(*parts), histogram


# Aggregation over measurements: source of every row, and its verification.


def _key_expressions() -> tuple[sa.ColumnElement[Any], ...]:
    return (
        measurement.c.day,
        measurement.c.subject_id,
        sa.func.coalesce(measurement.c.kind, literal_text(UNKNOWN_KIND)),
        outcome_column(),
    )


def _select_measurement_sums() -> sa.Select[Any]:
    key = _key_expressions()
    columns: list[sa.ColumnElement[Any]] = [sa.func.count()]
    for name in ROLLUP_METRICS:
        columns += moment_sums(credible_value(measurement.c[name]))
    named = zip((*KEY_COLUMNS, *_ADDED_COLUMNS), (*key, *columns), strict=True)
    return sa.select(*(column.label(name) for name, column in named)).group_by(*key)


def rebuild_rollups(
    connection: Connection, owners: Iterable[tuple[int, int]] | None = None
) -> None:
    """Rebuild rows from the measurements, inside the write transaction.

    Args:
        connection: connection of the write transaction.
        owners: days and subject numbers to rebuild; all if None.
    """
    owners = None if owners is None else list(owners)
    operation_rollups.rebuild_rollups(connection, owners)
    if owners is None:
        _rebuild_rows(connection, sa.true(), sa.true())
        return
    for day, subject_id in owners:
        measured, rolled = (
            sa.and_(table.c.day == day, table.c.subject_id == subject_id)
            for table in (measurement, rollup_day)
        )
        _rebuild_rows(connection, measured, rolled)


def _rebuild_rows(
    connection: Connection, measured: sa.ColumnElement[bool], rolled: sa.ColumnElement[bool]
) -> None:
    connection.execute(sa.delete(rollup_day).where(rolled))
    sums = _select_measurement_sums().where(measured).add_columns(sa.literal_column("'[]'"))
    names = [*KEY_COLUMNS, *_ADDED_COLUMNS, HISTOGRAM_COLUMN]
    connection.execute(sa.insert(rollup_day).from_select(names, sums, include_defaults=False))
    # Databases cannot add lists.
    waiting = (
        {**_key_parameters(key), "reads": one.histogram}
        for key, one in _sum_histograms(connection, measured).items()
    )
    while some := list(islice(waiting, CHUNK)):
        connection.execute(_ADD_SUMS_AND_READS, some)


def _sum_histograms(
    connection: Connection, measured: sa.ColumnElement[bool]
) -> dict[RollupKey, _RollupSums]:
    """Sum the latency histograms."""
    # Decoded here, because a database may return many equal histograms.
    text = sa.type_coerce(measurement.c[HISTOGRAM_COLUMN], sa.Text)
    query = sa.select(*_key_expressions(), text).where(
        measured, measurement.c[HISTOGRAM_COLUMN].is_not(None)
    )
    found: dict[RollupKey, _RollupSums] = {}
    with connection.execute(query.execution_options(yield_per=CHUNK)) as rows:
        for *key, packed in rows:
            mine = found.setdefault(RollupKey(*key), _RollupSums())
            for place, reads in parse_bins(packed):
                mine.reads[place] += reads
    return found


def find_difference(connection: Connection) -> str:
    """Describe the first row that differs from the measurements; '' if all agree."""
    # Compared as text, because a damaged list is a difference as well.
    columns = [column for column in rollup_day.c if column.name != HISTOGRAM_COLUMN]
    text = sa.type_coerce(rollup_day.c[HISTOGRAM_COLUMN], sa.Text).label(HISTOGRAM_COLUMN)
    rows = connection.execute(sa.select(*columns, text)).mappings()
    kept = {_row_key(row): row for row in rows}
    reads = _sum_histograms(connection, sa.true())
    for row in connection.execute(_select_measurement_sums()).mappings():
        key = _row_key(row)
        mine = kept.pop(key, None)
        if mine is None or not _sums_agree(mine, row):
            return f"{key}"
        if mine[HISTOGRAM_COLUMN] != encode_numbers(reads[key].histogram if key in reads else []):
            return f"{key}, {HISTOGRAM_COLUMN}"
    if kept:
        return f"{next(iter(kept))}"
    return operation_rollups.find_difference(connection)


def _row_key(row: Mapping[Any, Any]) -> RollupKey:
    return RollupKey(*(row[name] for name in KEY_COLUMNS))


def _sums_agree(mine: Mapping[Any, Any], measured: Mapping[Any, Any]) -> bool:
    if mine["measurements"] != measured["measurements"]:
        return False
    for number, total, squares, _ in _METRIC_COLUMNS:
        # Upper bound of the summed values, which may nearly cancel where signs mix.
        size = math.sqrt(measured[number] * measured[squares])
        if not (
            mine[number] == measured[number]
            and _is_close(mine[total], measured[total], size)
            and _is_close(mine[squares], measured[squares])
        ):
            return False
    return True


def _is_close(one: float, other: float, size: float = 0.0) -> bool:
    return math.isclose(
        one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=max(1e-300, RELATIVE_TOLERANCE * size)
    )
