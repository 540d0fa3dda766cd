"""Give every measurement its rows in the dimensions, and pack its lists of passes.

It may be run again where it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.engine import Connection

from treehammer.sql.core.migrations.shape import DIMENSIONS, PACKED, type_of

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

#: Measurements at a time; an IN list may hold 1000 on Oracle.
CHUNK = 500

_dimensions = {
    name: sa.table(
        name,
        sa.column("id", sa.BigInteger()),
        *(sa.column(column, type_of(kind)) for column, (kind, _) in columns.items()),
    )
    for name, columns in DIMENSIONS.items()
}
_measurement = sa.table(
    "measurement",
    sa.column("measurement_id", type_of(128)),
    *(
        sa.column(column, type_of(kind))
        for columns in DIMENSIONS.values()
        for column, (kind, _) in columns.items()
    ),
    *(sa.column(name, sa.Text()) for name in PACKED),
    sa.column("passes", sa.LargeBinary()),
    *(sa.column(f"{name}_id", sa.BigInteger()) for name in DIMENSIONS),
)


def upgrade() -> None:
    """Apply this revision."""
    if context.is_offline_mode():
        return
    connection = op.get_bind()
    last = ""
    while rows := _next(connection, last):
        _fill(connection, rows)
        last = rows[-1]["measurement_id"]


def _next(connection: Connection, last: str) -> Sequence[sa.RowMapping]:
    names = [name for columns in DIMENSIONS.values() for name in columns]
    id_ = _measurement.c.measurement_id
    query = (
        sa.select(id_, *(_measurement.c[name] for name in (*names, *PACKED)))
        .where(id_ > last if last else sa.true())
        .order_by(id_)
        .limit(CHUNK)
    )
    return connection.execute(query).mappings().all()


def _fill(connection: Connection, rows: Sequence[sa.RowMapping]) -> None:
    changes: list[dict[str, Any]] = [
        {"this": row["measurement_id"], "passes": _packed(row)} for row in rows
    ]
    for name, columns in DIMENSIONS.items():
        found: dict[int, dict[str, Any]] = {}
        for row, change in zip(rows, changes, strict=True):
            values = {column: row[column] for column in columns}
            number = _number(values)
            change[f"{name}_id"] = number
            found[number] = {"id": number, **values}
        _insert(connection, _dimensions[name], found)
    filled: dict[str, Any] = {name: sa.bindparam(name) for name in changes[0] if name != "this"}
    connection.execute(
        sa.update(_measurement)
        .where(_measurement.c.measurement_id == sa.bindparam("this"))
        .values(filled),
        changes,
    )


def _insert(connection: Connection, table: sa.TableClause, rows: dict[int, dict[str, Any]]) -> None:
    there = set(connection.scalars(sa.select(table.c.id).where(table.c.id.in_(rows))))
    missing = [row for number, row in rows.items() if number not in there]
    if missing:
        connection.execute(sa.insert(table), missing)


def _number(values: dict[str, Any]) -> int:
    known = {name: value for name, value in sorted(values.items()) if value is not None}
    text = json.dumps(known, separators=(",", ":"), allow_nan=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _packed(row: sa.RowMapping) -> bytes | None:
    lists = [None if row[name] is None else json.loads(row[name]) for name in PACKED]
    if all(one is None for one in lists):
        return None
    lengths = [-1 if one is None else len(one) for one in lists]
    numbers = [number for one in lists if one is not None for number in one]
    body = np.array([len(PACKED), *lengths], "<i4").tobytes() + np.array(numbers, "<f8").tobytes()
    return b"\x01" + zlib.compress(body)
