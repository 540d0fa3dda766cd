"""Last good measurement of each roll-up, so that a site's history reads no measurements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.engine import Connection

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_LAST = ("last_us", "software_id", "node_id", "storage_id")
_KEY = ("day", "subject_id", "kind", "outcome")
#: Rows per update.
_CHUNK = 500

_rollup = sa.table(
    "rollup_day",
    *(sa.column(name, sa.BigInteger) for name in ("day", "subject_id", *_LAST)),
    *(sa.column(name, sa.String) for name in ("kind", "outcome")),
)
_measurement = sa.table(
    "measurement",
    *(sa.column(name, sa.BigInteger) for name in ("day", "subject_id", "started_us", *_LAST[1:])),
    *(sa.column(name, sa.String) for name in ("kind", "failure_class")),
    sa.column("plausible", sa.Boolean),
)


def upgrade() -> None:
    """Add the columns, and fill them from the measurements."""
    for name in _LAST:
        op.add_column("rollup_day", sa.Column(name, sa.BigInteger()))
    connection = op.get_bind()
    row = sa.and_(*(_rollup.c[name] == sa.bindparam(f"key_{name}") for name in _KEY))
    update = sa.update(_rollup).where(row)
    update = update.values({name: sa.bindparam(f"new_{name}") for name in _LAST})
    waiting = _find_last(connection)
    while some := list(islice(waiting, _CHUNK)):
        connection.execute(update, some)


def _find_last(connection: Connection) -> Iterator[dict[str, Any]]:
    """Yield the parameters of the update of each roll-up with good measurements."""
    table = _measurement.c
    by = (table.day, table.subject_id, table.kind)
    is_good = sa.and_(table.plausible == sa.true(), table.failure_class.is_(None))
    last_us = sa.func.max(table.started_us).label("last_us")
    columns = (table.started_us, *(table[name] for name in _LAST[1:]))
    rows: list[Any] = []
    # Apart, because NULL equals nothing, and an OR would keep SQLite from the index with times.
    for is_known in (True, False):
        has_kind = table.kind.is_not(None) if is_known else table.kind.is_(None)
        latest = sa.select(*by, last_us).where(is_good, has_kind).group_by(*by).subquery("latest")
        is_latest = sa.and_(
            is_good,
            table.day == latest.c.day,
            table.subject_id == latest.c.subject_id,
            table.kind == latest.c.kind if is_known else has_kind,
            table.started_us == latest.c.last_us,
        )
        query = sa.select(*by, *columns).select_from(latest).join(_measurement, is_latest)
        rows += connection.execute(query)
    found: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for day, subject_id, kind, *last in rows:
        key = (day, subject_id, kind or "unknown", "good")
        found[key] = max(found.get(key, ()), tuple(last))
    for key, values in found.items():
        names = (*(f"key_{name}" for name in _KEY), *(f"new_{name}" for name in _LAST))
        yield dict(zip(names, (*key, *values), strict=True))
