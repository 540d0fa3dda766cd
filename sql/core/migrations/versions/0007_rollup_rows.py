"""Roll up what there is; it may be run again where it was interrupted."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.engine import Connection

from treehammer.sql.core.migrations.rolled import FIGURES
from treehammer.sql.core.migrations.shape import REAL, text

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

#: Rows that are written at once.
CHUNK = 500
#: What is larger was made up, and its square might be infinite.
LARGEST = 1e120
#: The square of what is not larger counts as nothing; PostgreSQL refuses what cannot be told from it.
SMALLEST = 1e-150
MOST_READS = 2**36
BINS = 32

_KEY = ("day", "subject_id", "kind", "outcome")
_ADDED = ("measurements", *(f"{sort}_{name}" for name in FIGURES for sort in "nsq"))
_measurement = sa.table(
    "measurement",
    sa.column("day", sa.BigInteger()),
    sa.column("subject_id", sa.BigInteger()),
    sa.column("kind", text(64)),
    sa.column("failure_class", text(64)),
    sa.column("plausible", sa.Boolean()),
    sa.column("read_latency_hist", sa.Text()),
    *(sa.column(name) for name in FIGURES),
)
_day = sa.table("rollup_day", *(sa.column(name) for name in (*_KEY, *_ADDED, "read_latency_hist")))


def upgrade() -> None:
    """Apply this revision."""
    if context.is_offline_mode():
        return
    connection = op.get_bind()
    connection.execute(sa.delete(_day))
    connection.execute(sa.insert(_day).from_select([*_KEY, *_ADDED, "read_latency_hist"], _sums()))
    # Parameters have names of their own: those of the columns are taken by SET.
    same = sa.and_(*(_day.c[name] == sa.bindparam(f"key_{name}") for name in _KEY))
    changed = sa.update(_day).where(same).values(read_latency_hist=sa.bindparam("reads"))
    rows = [
        {f"key_{name}": value for name, value in zip(_KEY, key, strict=True)}
        | {"reads": json.dumps(reads, separators=(",", ":"))}
        for key, reads in _reads(connection).items()
    ]
    for start in range(0, len(rows), CHUNK):
        connection.execute(changed, rows[start : start + CHUNK])


def _word(literal: str) -> sa.ColumnClause[str]:
    return sa.literal_column(f"'{literal}'")


def _key() -> tuple[sa.ColumnElement[Any], ...]:
    # Written out: databases cannot tell that two parameters, of SELECT and GROUP BY, are the same.
    good, bad, none = map(_word, ("good", "implausible", "-"))
    whole = sa.case((_measurement.c.plausible == sa.true(), good), else_=bad)
    return (
        _measurement.c.day,
        _measurement.c.subject_id,
        sa.func.coalesce(_measurement.c.kind, none),
        sa.func.coalesce(_measurement.c.failure_class, whole),
    )


def _sums() -> sa.Select[Any]:
    columns: list[sa.ColumnElement[Any]] = [sa.func.count()]
    for name in FIGURES:
        real = sa.cast(_measurement.c[name], REAL)
        column = sa.case((real.between(-LARGEST, LARGEST), real), else_=None)
        square = sa.case((column.between(-SMALLEST, SMALLEST), None), else_=column * column)
        columns += [
            sa.func.count(column),
            sa.func.coalesce(sa.func.sum(column), 0),
            sa.func.coalesce(sa.func.sum(square), 0),
        ]
    return sa.select(*_key(), *columns, sa.literal_column("'[]'")).group_by(*_key())


def _reads(connection: Connection) -> dict[tuple[Any, ...], list[int]]:
    histogram = _measurement.c.read_latency_hist
    found: dict[tuple[Any, ...], list[int]] = {}
    query = sa.select(*_key(), histogram).where(histogram.is_not(None))
    for *key, packed in connection.execute(query):
        bins = found.setdefault(tuple(key), [0] * BINS)
        for place, reads in enumerate(json.loads(packed)[:BINS]):
            if 0 < reads <= MOST_READS:
                bins[place] += reads
    # Empty bins at the end are left out.
    return {
        key: bins[: max((p for p in range(BINS) if bins[p]), default=-1) + 1]
        for key, bins in found.items()
    }
