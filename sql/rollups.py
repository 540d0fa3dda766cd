"""Roll-ups: counts, sums and squares by day and subject, kept up to date with every measurement.

A page over a year of results reads some thousand of these rows in place of ten million
measurements.  They can be made again from the measurements at any time, which also proves them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.metrics import LATENCY_BINS
from treehammer.sql.schema import (
    REAL,
    ROLLED,
    measurement,
    rolled_columns,
    rollup_day,
    rollup_latency,
)

#: Outcome of what came back whole and can be true; only of such rows means are taken.
GOOD = "good"
#: Outcome of what came back whole and cannot be true; every other outcome is a class of failure.
IMPLAUSIBLE = "implausible"
#: A kind that was recorded as no text at all.
NO_KIND = "-"
#: No figure is larger; what is, was made up, and its square might be infinite.
LARGEST = 1e120
#: The square of what is not larger counts as nothing; PostgreSQL refuses what cannot be told from it.
SMALLEST = 1e-150
#: No measurement has more reads of one latency; what has was made up, and a sum might overflow.
MOST_READS = 2**36
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
        for place, reads in _filled_bins(values["read_latency_hist"] or ()):
            self.reads[place] += reads


_PLACES = tuple((*rolled_columns(name), name) for name in ROLLED)
_ADDED = ("measurements", *(name for *three, _ in _PLACES for name in three))


def key_of(values: Mapping[str, Any], subject_id: int) -> Key:
    """The row that a measurement adds to."""
    outcome = values["failure_class"] or (GOOD if values["plausible"] else IMPLAUSIBLE)
    return Key(values["day"], subject_id, values["kind"] or NO_KIND, outcome)


def add(connection: Connection, measured: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Add new measurements, each with the number of its subject, inside the writer's transaction."""
    sums: dict[Key, _Sums] = {}
    for subject_id, values in measured:
        sums.setdefault(key_of(values, subject_id), _Sums()).add(values)
    _add_to(connection, rollup_day, KEY, {key: one.values for key, one in sums.items()})
    reads = {
        (*key, place): {"reads": count}
        for key, one in sums.items()
        for place, count in enumerate(one.reads)
        if count
    }
    _add_to(connection, rollup_latency, (*KEY, "bin"), reads)


def _add_to(
    connection: Connection,
    table: sa.Table,
    names: Sequence[str],
    changes: Mapping[tuple[Any, ...], Mapping[str, float]],
) -> None:
    there = set(_present(connection, table, names, changes))
    old = [key for key in changes if key in there]
    new = [key for key in changes if key not in there]
    if old:
        added = list(changes[old[0]])
        # Parameters have names of their own: those of the columns are taken by SET.
        same = sa.and_(*(table.c[name] == sa.bindparam(f"key_{name}") for name in names))
        connection.execute(
            sa.update(table)
            .where(same)
            .values({name: table.c[name] + sa.bindparam(f"more_{name}") for name in added}),
            [
                {f"key_{name}": value for name, value in zip(names, key, strict=True)}
                | {f"more_{name}": value for name, value in changes[key].items()}
                for key in old
            ],
        )
    if new:
        rows = [{**dict(zip(names, key, strict=True)), **changes[key]} for key in new]
        connection.execute(sa.insert(table), rows)


def _present(
    connection: Connection,
    table: sa.Table,
    names: Sequence[str],
    wanted: Iterable[tuple[Any, ...]],
) -> Iterator[tuple[Any, ...]]:
    owners: dict[int, set[int]] = {}
    for key in wanted:
        owners.setdefault(key[0], set()).add(key[1])
    for day, subjects in owners.items():
        waiting = iter(subjects)
        while some := list(islice(waiting, CHUNK)):
            found = sa.select(*(table.c[name] for name in names)).where(
                table.c.day == day, table.c.subject_id.in_(some)
            )
            yield from map(tuple, connection.execute(found))


# What the measurements say: the source of every row, and its proof.


def _word(text: str) -> sa.ColumnClause[str]:
    return sa.literal_column(f"'{text}'")


def outcome() -> sa.ColumnElement[str]:
    """What became of a measurement."""
    # Written out: databases cannot tell that two parameters, of SELECT and GROUP BY, are the same.
    whole = sa.case((measurement.c.plausible == sa.true(), _word(GOOD)), else_=_word(IMPLAUSIBLE))
    return sa.func.coalesce(measurement.c.failure_class, whole)


def _key_columns() -> tuple[sa.ColumnElement[Any], ...]:
    return (
        measurement.c.day,
        measurement.c.subject_id,
        sa.func.coalesce(measurement.c.kind, _word(NO_KIND)),
        outcome(),
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
        _remake(connection, sa.true(), sa.true(), sa.true())
        return
    for day, subject_id in owners:
        conditions = [
            sa.and_(table.c.day == day, table.c.subject_id == subject_id)
            for table in (measurement, rollup_day, rollup_latency)
        ]
        _remake(connection, *conditions)


def _remake(
    connection: Connection,
    measured: sa.ColumnElement[bool],
    days: sa.ColumnElement[bool],
    latencies: sa.ColumnElement[bool],
) -> None:
    connection.execute(sa.delete(rollup_day).where(days))
    connection.execute(
        sa.insert(rollup_day).from_select(
            [*KEY, *_ADDED], _sums_of_measurements().where(measured), include_defaults=False
        )
    )
    connection.execute(sa.delete(rollup_latency).where(latencies))
    waiting = (
        {**dict(zip((*KEY, "bin"), key, strict=True)), "reads": reads}
        for key, reads in _reads(connection, measured).items()
    )
    while some := list(islice(waiting, CHUNK)):
        connection.execute(sa.insert(rollup_latency), some)


def _reads(connection: Connection, measured: sa.ColumnElement[bool]) -> dict[tuple[Any, ...], int]:
    """Reads by key and bin of the latency histogram: a database cannot add up lists."""
    query = sa.select(
        *_key_columns(),
        # Decoded here: a database may hand out many that are the same.
        sa.type_coerce(measurement.c.read_latency_hist, sa.Text),
    ).where(measured, measurement.c.read_latency_hist.is_not(None))
    found: dict[tuple[Any, ...], int] = {}
    with connection.execute(query.execution_options(yield_per=CHUNK)) as rows:
        for *key, text in rows:
            for place, reads in bins(text):
                whole = (*key, place)
                found[whole] = found.get(whole, 0) + reads
    return found


@lru_cache(maxsize=1 << 16)
def bins(text: str) -> tuple[tuple[int, int], ...]:
    """Place and reads of the bins of a histogram that count, from what the database holds."""
    return tuple(_filled_bins(json.loads(text)))


def _filled_bins(histogram: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Place and reads of the bins that count; no loop reads so often as to overflow a sum."""
    for place, reads in enumerate(histogram[:LATENCY_BINS]):
        if 0 < reads <= MOST_READS:
            yield place, reads


def difference(connection: Connection) -> str:
    """The first row that is not what the measurements say, in words; '' when all are."""
    return _different(connection) or _different_reads(connection)


def _different(connection: Connection) -> str:
    kept = {_key(row): row for row in connection.execute(sa.select(rollup_day)).mappings()}
    for row in connection.execute(_sums_of_measurements()).mappings():
        mine = kept.pop(_key(row), None)
        if mine is None or not all(_equal(mine[name], row[name]) for name in _ADDED):
            return f"{_key(row)}"
    return f"{next(iter(kept))}" if kept else ""


def _different_reads(connection: Connection) -> str:
    names = (*KEY, "bin")
    rows = connection.execute(sa.select(rollup_latency)).mappings()
    kept = {tuple(row[name] for name in names): row["reads"] for row in rows}
    found = _reads(connection, sa.true())
    different = [key for key in {**kept, **found} if kept.get(key) != found.get(key)]
    return f"{Key(*different[0][:-1])}, read latencies" if different else ""


def _key(row: Mapping[Any, Any]) -> Key:
    return Key(*(row[name] for name in KEY))


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=1e-300)
