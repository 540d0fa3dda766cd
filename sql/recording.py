"""How measurements enter the database: each exactly once, whoever hands it in and how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from treehammer.collectors.metrics import CATALOGUE, TYPES, Value
from treehammer.collectors.record import Measurement
from treehammer.sql import marks
from treehammer.sql.schema import extra, measurement

#: Measurements that are written in one transaction; an IN list may hold 1000 on Oracle.
BATCH = 500

_NOTHING: dict[str, Value] = dict.fromkeys((metric.name for metric in CATALOGUE), None)
_NAMES = {kind: [m.name for m in CATALOGUE if m.type == kind] for kind in TYPES}


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
    """The values as they come back: '' as ``None``, whole numbers in a float column as floats."""
    kept: dict[str, Value] = {**_NOTHING, **values}
    for name in _NAMES["text"]:
        kept[name] = kept[name] or None
    for name in _NAMES["float"]:
        if isinstance(number := kept[name], int):
            kept[name] = float(number)
    for name in _NAMES["floats"]:
        if isinstance(numbers := kept[name], list):
            kept[name] = [float(number) for number in numbers]
    return _Content(kept, {name: float(value) for name, value in extras.items()})


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
        row["measurement_id"]: _Content(_unmarked(row), extras.get(row["measurement_id"], {}))
        for row in rows
    }


def _unmarked(row: RowMapping) -> dict[str, Value]:
    """The values as they were handed in: a mark came later."""
    why = marks.without(row["implausible_why"])
    marked = why != row["implausible_why"]
    return {**row, "implausible_why": why, "plausible": why is None} if marked else dict(row)


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
