"""Roll-ups: counts, sums and squares by day and subject, updated with every measurement.

Failures that a later attempt of the job made up for are left out.

A page over a year of results reads some thousand of these rows instead of ten million
measurements. They can be rebuilt from the measurements at any time, which also verifies them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import LATENCY_BINS
from treehammer.collectors.record.outcome import Outcome, label_outcome
from treehammer.sql.core.measurement_columns import decode_numbers, encode_numbers
from treehammer.sql.core.measurement_sql import (
    HISTOGRAM_COLUMN,
    MAX_CREDIBLE,
    UNKNOWN_KIND,
    credible_value,
    filled_bins,
    has_outcome,
    is_bad,
    is_counted,
    is_repeated_by,
    is_superseded,
    literal_text,
    moment_sums,
    outcome_column,
    parse_bins,
)
from treehammer.sql.core.schema import (
    LAST_COLUMNS,
    ROLLUP_METRICS,
    measurement,
    rollup_column_names,
    rollup_day,
)
from treehammer.sql.engine.database_engine import backend_of, split_ids
from treehammer.sql.write import operation_recording
from treehammer.sql.write.operation_recording import (
    CHUNK,
    Owner,
    belongs_to,
    describe_key,
    group_subjects,
    has_key,
    key_parameters,
    select_of_day,
)

#: Relative tolerance for sums computed in a different order.
RELATIVE_TOLERANCE = 1e-9


class RollupKey(NamedTuple):
    """Key of a roll-up row."""

    day: int
    subject_id: int
    kind: str
    outcome: str

    @property
    def owner(self) -> Owner:
        """Day and subject."""
        return self.day, self.subject_id


#: Values of :data:`LAST_COLUMNS`; of several measurements that start together, the largest.
LastValues = tuple[int, ...]


class _KeySums:
    """Sums over many measurements of one key, and the last one if they are good."""

    def __init__(self) -> None:
        self.sums: list[float] = [0] * len(_ADDED_COLUMNS)
        self.reads = [0] * LATENCY_BINS
        self.last: LastValues = ()

    def add(self, values: Mapping[str, Any]) -> None:
        sums = self.sums
        sums[0] += 1
        for place, value in zip(_METRIC_PLACES, _pick_metrics(values), strict=True):
            if value is not None and -MAX_CREDIBLE <= value <= MAX_CREDIBLE:
                real = float(value)
                sums[place] += 1
                sums[place + 1] += real
                sums[place + 2] += real * real
        if histogram := values[HISTOGRAM_COLUMN]:
            for place, reads in filled_bins(histogram):
                self.reads[place] += reads

    def add_last(self, values: Mapping[str, Any]) -> None:
        """Keep the last one of good measurements."""
        self.last = max(self.last, _pick_last(values))

    def merge_row(self, last: LastValues, histogram: Sequence[int]) -> None:
        """Add last measurement and histogram of an existing row."""
        self.last = max(self.last, last)
        for place, reads in enumerate(histogram):
            self.reads[place] += reads

    @property
    def last_parameters(self) -> dict[str, int | None]:
        """Parameters of an update that sets :data:`LAST_COLUMNS`."""
        return dict(zip(_NEW_LAST_NAMES, self.last or _NO_LAST, strict=True))

    @property
    def histogram(self) -> list[int]:
        """Return the sums of the bins, up to the last filled one."""
        last = max((place for place, reads in enumerate(self.reads) if reads), default=-1)
        return self.reads[: last + 1]


_METRIC_COLUMNS = tuple((*rollup_column_names(name), name) for name in ROLLUP_METRICS)
_ADDED_COLUMNS = ("measurements", *(name for *three, _ in _METRIC_COLUMNS for name in three))
#: Place of each metric's first column among the added ones.
_METRIC_PLACES = tuple(range(1, len(_ADDED_COLUMNS), 3))
_pick_metrics = itemgetter(*ROLLUP_METRICS)
_MORE_NAMES = tuple(f"more_{name}" for name in _ADDED_COLUMNS)
_NEW_LAST_NAMES = tuple(f"new_{name}" for name in LAST_COLUMNS)
_NO_LAST = (None,) * len(LAST_COLUMNS)
_pick_last = itemgetter("started_us", *LAST_COLUMNS[1:])

_KEY_COLUMNS = tuple(rollup_day.c[name] for name in RollupKey._fields)
_LAST_COLUMNS = tuple(rollup_day.c[name] for name in LAST_COLUMNS)
_SELECT_STORED = select_of_day(
    rollup_day,
    *_KEY_COLUMNS,
    *_LAST_COLUMNS,
    sa.type_coerce(rollup_day.c[HISTOGRAM_COLUMN], sa.Text),
)
_NEW_VALUES: dict[str, Any] = {HISTOGRAM_COLUMN: sa.bindparam("reads")} | {
    name: sa.bindparam(new) for name, new in zip(LAST_COLUMNS, _NEW_LAST_NAMES, strict=True)
}
_ADD_SUMS = (
    sa.update(rollup_day)
    .where(*has_key(_KEY_COLUMNS))
    .values(
        {name: rollup_day.c[name] + sa.bindparam(f"more_{name}") for name in _ADDED_COLUMNS}
        | _NEW_VALUES
    )
)
_SET_VALUES = sa.update(rollup_day).where(*has_key(_KEY_COLUMNS)).values(_NEW_VALUES)


def rollup_key(row: Mapping[str, Any]) -> RollupKey:
    """Return the key of the row that a measurement belongs to."""
    kind = row["kind"] or UNKNOWN_KIND
    return RollupKey(row["day"], row["subject_id"], kind, label_outcome(row))


class RollupSums:
    """Sums over the new measurements of a transaction, by the key of their row."""

    def __init__(self) -> None:
        self._sums: defaultdict[RollupKey, _KeySums] = defaultdict(_KeySums)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a measurement with the numbers of its dimensions."""
        key = rollup_key(row)
        key_sums = self._sums[key]
        key_sums.add(row)
        if key.outcome == Outcome.GOOD:
            key_sums.add_last(row)

    @property
    def owners(self) -> set[Owner]:
        """Days and subjects of the measurements."""
        return {key.owner for key in self._sums}

    def write(self, connection: Connection) -> None:
        """Add the sums to the rows, inside the write transaction."""
        stored = dict(_fetch_stored(connection, self._sums))
        old, new = [], []
        for key, key_sums in self._sums.items():
            if key in stored:
                key_sums.merge_row(*stored[key])
                more = dict(zip(_MORE_NAMES, key_sums.sums, strict=True)) | key_sums.last_parameters
                old.append({**key_parameters(key._asdict()), **more, "reads": key_sums.histogram})
            else:
                first = dict(zip(_ADDED_COLUMNS, key_sums.sums, strict=True))
                last = dict(zip(LAST_COLUMNS, key_sums.last or _NO_LAST, strict=True))
                new.append({**key._asdict(), **first, **last, HISTOGRAM_COLUMN: key_sums.histogram})
        backend = backend_of(connection.engine)
        if old:
            backend.execute_rows(connection, _ADD_SUMS, old)
        if new:
            backend.insert_rows(connection, rollup_day, new)


def _fetch_stored(
    connection: Connection, keys: Collection[RollupKey]
) -> Iterator[tuple[RollupKey, tuple[LastValues, Sequence[int]]]]:
    """Fetch last measurements and histograms of the existing rows."""
    backend = backend_of(connection.engine)
    for day, subjects in group_subjects(key.owner for key in keys):
        parameters = {"day": day, "subjects": subjects}
        for row in backend.fetch_rows(connection, _SELECT_STORED, parameters):
            *values, text = row
            if (key := RollupKey(*values[: len(_KEY_COLUMNS)])) in keys:
                last = values[len(_KEY_COLUMNS) :]
                yield key, (() if last[0] is None else tuple(last), decode_numbers(text))


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
    named = zip((*RollupKey._fields, *_ADDED_COLUMNS), (*key, *columns), strict=True)
    labeled = (column.label(name) for name, column in named)
    return sa.select(*labeled).where(is_counted()).group_by(*key)


def find_superseded_owners(
    connection: Connection, later_ids: Collection[str] = (), bad_ids: Collection[str] = ()
) -> set[Owner]:
    """Find the rows to rebuild because failed measurements are superseded.

    Args:
        connection: connection of the write transaction.
        later_ids: measurements of later attempts, which may supersede others.
        bad_ids: failed measurements, which others may supersede.
    """
    later = measurement.alias("later")
    owner = sa.select(measurement.c.day, measurement.c.subject_id).where(is_bad()).distinct()
    queries = [
        *(
            owner.select_from(measurement.join(later, sa.and_(*is_repeated_by(later)))).where(
                later.c.measurement_id.in_(ids)
            )
            for ids in split_ids(later_ids)
        ),
        *(
            owner.where(measurement.c.measurement_id.in_(ids), is_superseded())
            for ids in split_ids(bad_ids)
        ),
    ]
    return {(day, subject) for query in queries for day, subject in connection.execute(query)}


def rebuild_rollups(connection: Connection, owners: Iterable[Owner] | None = None) -> None:
    """Rebuild rows from the measurements and their operations, inside the write transaction.

    Args:
        connection: connection of the write transaction.
        owners: days and subject numbers to rebuild; all if None.
    """
    for owner in [None] if owners is None else owners:
        operation_recording.rebuild_rows(connection, owner)
        _rebuild_rows(connection, owner)


def _rebuild_rows(connection: Connection, owner: Owner | None) -> None:
    connection.execute(sa.delete(rollup_day).where(belongs_to(owner, rollup_day)))
    measured = belongs_to(owner, measurement)
    sums = _select_measurement_sums().where(measured).add_columns(sa.literal_column("'[]'"))
    names = [*RollupKey._fields, *_ADDED_COLUMNS, HISTOGRAM_COLUMN]
    connection.execute(sa.insert(rollup_day).from_select(names, sums, include_defaults=False))
    # Databases cannot add lists.
    sums_by_key = _sum_histograms(connection, measured)
    for key, last in _find_last(connection, measured).items():
        sums_by_key.setdefault(key, _KeySums()).last = last
    parameters = (
        {**key_parameters(key._asdict()), "reads": key_sums.histogram, **key_sums.last_parameters}
        for key, key_sums in sums_by_key.items()
    )
    while chunk := list(islice(parameters, CHUNK)):
        connection.execute(_SET_VALUES, chunk)


def _find_last(
    connection: Connection, measured: sa.ColumnElement[bool]
) -> dict[RollupKey, LastValues]:
    """Find the last good measurement of each row."""
    table = measurement.c
    by = (table.day, table.subject_id, table.kind)
    is_good = has_outcome(Outcome.GOOD)
    last_us = sa.func.max(table.started_us).label("last_us")
    columns = (table.started_us, *(table[name] for name in LAST_COLUMNS[1:]))
    rows: list[Any] = []
    # Apart, because NULL equals nothing, and an OR would keep SQLite from the index with times.
    for is_known in (True, False):
        has_kind = table.kind.is_not(None) if is_known else table.kind.is_(None)
        latest = (
            sa.select(*by, last_us)
            .where(measured, is_good, has_kind)
            .group_by(*by)
            .subquery("latest")
        )
        is_latest = sa.and_(
            is_good,
            table.day == latest.c.day,
            table.subject_id == latest.c.subject_id,
            table.kind == latest.c.kind if is_known else has_kind,
            table.started_us == latest.c.last_us,
        )
        query = sa.select(*by, *columns).select_from(latest).join(measurement, is_latest)
        rows += connection.execute(query)
    last_values: dict[RollupKey, LastValues] = {}
    for day, subject_id, kind, *last in rows:
        key = RollupKey(day, subject_id, kind or UNKNOWN_KIND, Outcome.GOOD.value)
        last_values[key] = max(last_values.get(key, ()), tuple(last))
    return last_values


def _sum_histograms(
    connection: Connection, measured: sa.ColumnElement[bool]
) -> dict[RollupKey, _KeySums]:
    """Sum the latency histograms."""
    # Decoded here, because a database may return many equal histograms.
    text = sa.type_coerce(measurement.c[HISTOGRAM_COLUMN], sa.Text)
    query = sa.select(*_key_expressions(), text).where(
        measured, is_counted(), measurement.c[HISTOGRAM_COLUMN].is_not(None)
    )
    sums: dict[RollupKey, _KeySums] = {}
    with connection.execute(query.execution_options(yield_per=CHUNK)) as rows:
        for *key, packed in rows:
            key_sums = sums.setdefault(RollupKey(*key), _KeySums())
            for place, reads in parse_bins(packed):
                key_sums.reads[place] += reads
    return sums


def find_difference(connection: Connection) -> str:
    """Describe the first row that differs from the measurements; '' if all agree."""
    # Compared as text, because a damaged list is a difference as well.
    columns = [column for column in rollup_day.c if column.name != HISTOGRAM_COLUMN]
    last = _find_last(connection, sa.true())
    text = sa.type_coerce(rollup_day.c[HISTOGRAM_COLUMN], sa.Text).label(HISTOGRAM_COLUMN)
    rows = connection.execute(sa.select(*columns, text)).mappings()
    stored_rows = {_row_key(row): row for row in rows}
    reads = _sum_histograms(connection, sa.true())
    for row in connection.execute(_select_measurement_sums()).mappings():
        key = _row_key(row)
        stored_row = stored_rows.pop(key, None)
        if stored_row is None or not _sums_agree(stored_row, row):
            return describe_key(key)
        if stored_row[HISTOGRAM_COLUMN] != encode_numbers(
            reads[key].histogram if key in reads else []
        ):
            return f"{HISTOGRAM_COLUMN} of {describe_key(key)}"
        if tuple(stored_row[name] for name in LAST_COLUMNS) != last.get(key, _NO_LAST):
            return f"last measurement of {describe_key(key)}"
    if stored_rows:
        return describe_key(next(iter(stored_rows)))
    return operation_recording.find_difference(connection)


def _row_key(row: Mapping[Any, Any]) -> RollupKey:
    return RollupKey(*(row[name] for name in RollupKey._fields))


def _sums_agree(stored: Mapping[Any, Any], measured: Mapping[Any, Any]) -> bool:
    if stored["measurements"] != measured["measurements"]:
        return False
    for number, total, squares, _ in _METRIC_COLUMNS:
        # Upper bound of the summed values, which may nearly cancel where signs mix.
        size = math.sqrt(measured[number] * measured[squares])
        if not (
            stored[number] == measured[number]
            and _is_close(stored[total], measured[total], size)
            and _is_close(stored[squares], measured[squares])
        ):
            return False
    return True


def _is_close(first: float, second: float, size: float = 0.0) -> bool:
    return math.isclose(
        first, second, rel_tol=RELATIVE_TOLERANCE, abs_tol=max(1e-300, RELATIVE_TOLERANCE * size)
    )
