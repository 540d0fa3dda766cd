"""Roll-ups: counts, sums and squares by day and subject, kept up to date with every measurement.

A page over a year of results reads some thousand of these rows in place of ten million
measurements.  They can be made again from the measurements at any time, which also proves them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.failures import CLASSES, NOT_SUPPORTED
from treehammer.collectors.metrics import LATENCY_BINS
from treehammer.sql.packing import as_text, numbers
from treehammer.sql.schema import (
    REAL,
    ROLLED,
    measurement,
    rolled_columns,
    rollup_day,
)

#: Outcome of what came back whole and can be true; only of such rows means are taken.
GOOD = "good"
#: Outcome of what came back whole and cannot be true; every other outcome is a class of failure.
IMPLAUSIBLE = "implausible"
#: Class of failure -> outcome of what a release or set-up cannot do at all: nothing went wrong there.
UNSUPPORTED = {
    "software setup": "software setup: not supported",
    "stage-in": "stage-in: not supported",
}
#: Every outcome but :data:`GOOD`.
NOT_GOOD = (*CLASSES, IMPLAUSIBLE, *UNSUPPORTED.values())
#: A kind that was recorded as no text at all.
NO_KIND = "-"
#: No figure is larger; what is, was made up, and its square might be infinite.
LARGEST = 1e120
#: The square of what is not larger counts as nothing; PostgreSQL refuses what cannot be told from it.
SMALLEST = 1e-150
#: No measurement has more reads of one latency; what has was made up, and a sum might overflow.
MOST_READS = 2**36
#: Sums have no such limit.
ANY = 2**63
#: Relative difference by which sums in another order may differ.
ROUNDING = 1e-9
#: Keys that are looked up at once; an IN list may hold 1000 on Oracle.
CHUNK = 500

#: Columns of the key that name whose rows they are: what is made again is made again for all of them.
OWNER = ("day", "subject_id")
KEY = (*OWNER, "kind", "outcome")


class Key(NamedTuple):
    """What one row is about."""

    day: int
    subject_id: int
    kind: str
    outcome: str


class _Sums:
    """What many measurements of one key add."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {"measurements": 0}
        for number, total, squares, _ in _PLACES:
            self.values |= {number: 0, total: 0.0, squares: 0.0}
        self.reads = [0] * LATENCY_BINS

    def add(self, values: Mapping[str, Any]) -> None:
        mine = self.values
        mine["measurements"] += 1
        for number, total, squares, name in _PLACES:
            value = values[name]
            if value is not None and -LARGEST <= value <= LARGEST:
                real = float(value)
                mine[number] += 1
                mine[total] += real
                mine[squares] += real * real
        for place, reads in _filled_bins(values[HISTOGRAM] or ()):
            self.reads[place] += reads

    def add_known(self, histogram: Sequence[int]) -> None:
        """Add the histogram of a row that is there already."""
        for place, reads in enumerate(histogram):
            self.reads[place] += reads

    @property
    def histogram(self) -> list[int]:
        """The sums of the bins, up to the last that is not empty."""
        last = max((place for place, reads in enumerate(self.reads) if reads), default=-1)
        return self.reads[: last + 1]


#: The column of latencies: of measurements, and summed up.
HISTOGRAM = "read_latency_hist"
_PLACES = tuple((*rolled_columns(name), name) for name in ROLLED)
_ADDED = ("measurements", *(name for *three, _ in _PLACES for name in three))


_KEY_COLUMNS = tuple(rollup_day.c[name] for name in KEY)
# Parameters have names of their own: those of the columns are taken by SET.
_MORE = (
    sa.update(rollup_day)
    .where(*(column == sa.bindparam(f"key_{column.name}") for column in _KEY_COLUMNS))
    .values(
        {name: rollup_day.c[name] + sa.bindparam(f"more_{name}") for name in _ADDED}
        | {HISTOGRAM: sa.bindparam("reads")}
    )
)
_MORE_READS = (
    sa.update(rollup_day)
    .where(*(column == sa.bindparam(f"key_{column.name}") for column in _KEY_COLUMNS))
    .values({HISTOGRAM: sa.bindparam("reads")})
)


def key_of(values: Mapping[str, Any], subject_id: int) -> Key:
    """The row that a measurement adds to."""
    outcome = values["failure_class"] or (GOOD if values["plausible"] else IMPLAUSIBLE)
    if values["failure_kind"] == NOT_SUPPORTED:
        outcome = UNSUPPORTED.get(outcome, outcome)
    return Key(values["day"], subject_id, values["kind"] or NO_KIND, outcome)


def add(connection: Connection, measured: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Add new measurements, each with the number of its subject, inside the writer's transaction."""
    sums: dict[Key, _Sums] = {}
    for subject_id, values in measured:
        sums.setdefault(key_of(values, subject_id), _Sums()).add(values)
    known = dict(_histograms(connection, sums))
    old = [(key, one) for key, one in sums.items() if key in known]
    if old:
        for key, one in old:
            one.add_known(known[key])
        connection.execute(
            _MORE,
            [
                {f"key_{name}": value for name, value in zip(KEY, key, strict=True)}
                | {f"more_{name}": value for name, value in one.values.items()}
                | {"reads": one.histogram}
                for key, one in old
            ],
        )
    new = [(key, one) for key, one in sums.items() if key not in known]
    if new:
        rows = [{**key._asdict(), **one.values, HISTOGRAM: one.histogram} for key, one in new]
        connection.execute(sa.insert(rollup_day), rows)


def _histograms(
    connection: Connection, wanted: Iterable[Key]
) -> Iterator[tuple[Key, Sequence[int]]]:
    """The rows that are there already, among others of the same days, and their histograms."""
    subjects: dict[int, set[int]] = {}
    for key in wanted:
        subjects.setdefault(key.day, set()).add(key.subject_id)
    for day, ids in subjects.items():
        waiting = iter(ids)
        while some := list(islice(waiting, CHUNK)):
            found = sa.select(*_KEY_COLUMNS, rollup_day.c[HISTOGRAM]).where(
                rollup_day.c.day == day, rollup_day.c.subject_id.in_(some)
            )
            for *parts, histogram in connection.execute(found):
                yield Key(*parts), histogram


# What the measurements say: the source of every row, and its proof.


def _word(text: str) -> sa.ColumnClause[str]:
    return sa.literal_column(f"'{text}'")


def outcome() -> sa.ColumnElement[str]:
    """What became of a measurement, as indexes tell it: by class, also of what is not supported."""
    # Written out: databases cannot tell that two parameters, of SELECT and GROUP BY, are the same.
    whole = sa.case((measurement.c.plausible == sa.true(), _word(GOOD)), else_=_word(IMPLAUSIBLE))
    return sa.func.coalesce(measurement.c.failure_class, whole)


def exact_outcome() -> sa.ColumnElement[str]:
    """The same with what is not supported told apart, as in roll-ups."""
    kind, of_class = measurement.c.failure_kind, measurement.c.failure_class
    lacks = kind == _word(NOT_SUPPORTED)
    told_apart = [
        (sa.and_(lacks, of_class == _word(name)), _word(apart))
        for name, apart in UNSUPPORTED.items()
    ]
    return sa.case(*told_apart, else_=outcome())


def class_of(outcome: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """The class of the failure behind an outcome; NULL where there was none."""
    same = [(outcome == _word(apart), _word(name)) for name, apart in UNSUPPORTED.items()]
    return sa.case(*same, else_=sa.func.nullif(sa.func.nullif(outcome, GOOD), IMPLAUSIBLE))


def _key_columns() -> tuple[sa.ColumnElement[Any], ...]:
    return (
        measurement.c.day,
        measurement.c.subject_id,
        sa.func.coalesce(measurement.c.kind, _word(NO_KIND)),
        exact_outcome(),
    )


def credible(column: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """A figure as a real number, and NULL where it cannot be true."""
    real = sa.cast(column, REAL)
    return sa.case((real.between(-LARGEST, LARGEST), real), else_=None)


def sums(value: sa.ColumnElement[float]) -> tuple[sa.ColumnElement[Any], ...]:
    """How many there are of a :func:`credible` figure, their sum, and the sum of their squares."""
    square = sa.case((value.between(-SMALLEST, SMALLEST), None), else_=value * value)
    return (
        sa.func.count(value),
        sa.func.coalesce(sa.func.sum(value), 0),
        sa.func.coalesce(sa.func.sum(square), 0),
    )


def _sums_of_measurements() -> sa.Select[Any]:
    key = _key_columns()
    columns: list[sa.ColumnElement[Any]] = [sa.func.count()]
    for name in ROLLED:
        columns += sums(credible(measurement.c[name]))
    named = zip((*KEY, *_ADDED), (*key, *columns), strict=True)
    return sa.select(*(column.label(name) for name, column in named)).group_by(*key)


def remake(connection: Connection, owners: Iterable[tuple[int, int]] | None = None) -> None:
    """Make rows again from the measurements, inside the writer's transaction.

    Args:
        connection: of the writer.
        owners: days and numbers of subjects whose rows are made; of all when None.
    """
    if owners is None:
        _remake(connection, sa.true(), sa.true())
        return
    for day, subject_id in owners:
        measured, rolled = (
            sa.and_(table.c.day == day, table.c.subject_id == subject_id)
            for table in (measurement, rollup_day)
        )
        _remake(connection, measured, rolled)


def _remake(
    connection: Connection, measured: sa.ColumnElement[bool], rolled: sa.ColumnElement[bool]
) -> None:
    connection.execute(sa.delete(rollup_day).where(rolled))
    sums = _sums_of_measurements().where(measured).add_columns(sa.literal_column("'[]'"))
    names = [*KEY, *_ADDED, HISTOGRAM]
    connection.execute(sa.insert(rollup_day).from_select(names, sums, include_defaults=False))
    # A database cannot add up lists.
    waiting = (
        {f"key_{name}": value for name, value in zip(KEY, key, strict=True)}
        | {"reads": one.histogram}
        for key, one in _reads(connection, measured).items()
    )
    while some := list(islice(waiting, CHUNK)):
        connection.execute(_MORE_READS, some)


def _reads(connection: Connection, measured: sa.ColumnElement[bool]) -> dict[Key, _Sums]:
    """Sums of latency histograms alone."""
    # Decoded here: a database may hand out many that are the same.
    text = sa.type_coerce(measurement.c[HISTOGRAM], sa.Text)
    query = sa.select(*_key_columns(), text).where(measured, measurement.c[HISTOGRAM].is_not(None))
    found: dict[Key, _Sums] = {}
    with connection.execute(query.execution_options(yield_per=CHUNK)) as rows:
        for *key, packed in rows:
            mine = found.setdefault(Key(*key), _Sums())
            for place, reads in bins(packed):
                mine.reads[place] += reads
    return found


@lru_cache(maxsize=1 << 16)
def bins(text: str, most: int = MOST_READS) -> tuple[tuple[int, int], ...]:
    """Place and reads of the bins that count, of a histogram as the database holds it.

    Args:
        text: of a measurement, or of a row here.
        most: reads of a bin that can be true; :data:`ANY` of sums.
    """
    return tuple(_filled_bins(numbers(text), most))


def _filled_bins(histogram: Sequence[int], most: int = MOST_READS) -> Iterator[tuple[int, int]]:
    for place, reads in enumerate(histogram[:LATENCY_BINS]):
        if 0 < reads <= most:
            yield place, reads


def difference(connection: Connection) -> str:
    """The first row that is not what the measurements say, in words; '' when all are."""
    # As text: a list that is damaged is a difference, too.
    columns = [column for column in rollup_day.c if column.name != HISTOGRAM]
    text = sa.type_coerce(rollup_day.c[HISTOGRAM], sa.Text).label(HISTOGRAM)
    rows = connection.execute(sa.select(*columns, text)).mappings()
    kept = {_key(row): row for row in rows}
    reads = _reads(connection, sa.true())
    for row in connection.execute(_sums_of_measurements()).mappings():
        key = _key(row)
        mine = kept.pop(key, None)
        if mine is None or not _agree(mine, row):
            return f"{key}"
        if mine[HISTOGRAM] != as_text(reads[key].histogram if key in reads else []):
            return f"{key}, {HISTOGRAM}"
    return f"{next(iter(kept))}" if kept else ""


def _key(row: Mapping[Any, Any]) -> Key:
    return Key(*(row[name] for name in KEY))


def _agree(mine: Mapping[Any, Any], measured: Mapping[Any, Any]) -> bool:
    if mine["measurements"] != measured["measurements"]:
        return False
    for number, total, squares, _ in _PLACES:
        # What is added up is at most this, and may nearly cancel where signs mix.
        size = math.sqrt(measured[number] * measured[squares])
        if not (
            mine[number] == measured[number]
            and _equal(mine[total], measured[total], size)
            and _equal(mine[squares], measured[squares])
        ):
            return False
    return True


def _equal(one: float, other: float, size: float = 0.0) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=max(1e-300, ROUNDING * size))
