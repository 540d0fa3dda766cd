"""How measurements enter the database: each exactly once, whoever hands it in and how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.metrics import CATALOGUE, Metric, Value
from treehammer.collectors.record import Measurement
from treehammer.sql.schema import extra, measurement

#: Measurements that are written in one transaction; an IN list may hold 1000 on Oracle.
BATCH = 500


@dataclass(frozen=True)
class Added:
    """What became of measurements that were handed in.

    ``known`` were there already, with the same content.  ``conflicting`` are identities that were
    there with other content: what was recorded first stays.
    """

    new: int
    known: int
    conflicting: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Content:
    """A measurement as the database gives it back: what two of one identity are compared by."""

    values: Mapping[str, Value]
    extras: Mapping[str, float]


def add_batch(connection: Connection, batch: Sequence[Measurement]) -> Added:
    """Write at most :data:`BATCH` measurements inside the transaction of ``connection``."""
    seen = _recorded(connection, [item.id for item in batch])
    new: dict[str, _Content] = {}
    known = 0
    conflicting: list[str] = []
    for item in batch:
        content = _content(item.values, item.extras)
        before = seen.setdefault(item.id, content)
        if before is content:
            new[item.id] = content
        elif before == content:
            known += 1
        else:
            conflicting.append(item.id)
    _insert(connection, new)
    return Added(len(new), known, tuple(conflicting))


def _content(values: Mapping[str, Any], extras: Mapping[str, float]) -> _Content:
    return _Content(
        {metric.name: _kept(metric, values.get(metric.name)) for metric in CATALOGUE},
        {name: float(value) for name, value in extras.items()},
    )


def _kept(metric: Metric, value: Any) -> Value:
    """The value as it comes back: '' as ``None``, whole numbers in a float column as floats."""
    if value is None or value == "":
        return None
    if metric.type == "float":
        return float(value)
    if metric.type == "floats":
        return [float(number) for number in value]
    return value  # type: ignore[no-any-return]  # a Measurement has checked it


def _recorded(connection: Connection, ids: Iterable[str]) -> dict[str, _Content]:
    wanted = list(set(ids))
    extras: dict[str, dict[str, float]] = {}
    for id_, name, value in connection.execute(
        sa.select(extra.c.measurement_id, extra.c.name, extra.c.value).where(
            extra.c.measurement_id.in_(wanted)
        )
    ):
        extras.setdefault(id_, {})[name] = value
    rows = connection.execute(
        sa.select(measurement).where(measurement.c.measurement_id.in_(wanted))
    ).mappings()
    return {
        row["measurement_id"]: _Content(dict(row), extras.get(row["measurement_id"], {}))
        for row in rows
    }


def _insert(connection: Connection, new: Mapping[str, _Content]) -> None:
    if not new:
        return
    connection.execute(sa.insert(measurement), [dict(content.values) for content in new.values()])
    extras = [
        {"measurement_id": id_, "name": name, "value": value}
        for id_, content in new.items()
        for name, value in content.extras.items()
    ]
    if extras:
        connection.execute(sa.insert(extra), extras)
