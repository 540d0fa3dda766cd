"""How measurements enter the database: each exactly once, whoever hands it in and how often."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from treehammer.collectors.metrics import CATALOGUE, TYPES, Value
from treehammer.collectors.record import Measurement
from treehammer.sql import marks, rollups, wide
from treehammer.sql.dimensions import DIMENSIONS, SUBJECT, Dimension
from treehammer.sql.packing import pack, unpack
from treehammer.sql.retention import PRUNED_COLUMNS
from treehammer.sql.schema import dimension_tables, extra, measurement
from treehammer.sql.wide import ALL_COLUMNS, PASSES

#: Measurements that are written in one transaction; an IN list may hold 1000 on Oracle.
BATCH = 500

_NOTHING: dict[str, Value] = dict.fromkeys((metric.name for metric in CATALOGUE), None)
#: Catalogue columns of the measurement table itself.
OWN = tuple(name for name in ALL_COLUMNS if name in measurement.c)
_NAMES = {kind: [m.name for m in CATALOGUE if m.type == kind] for kind in TYPES}

#: Bytes of a hash in a fingerprint, and what stands for a column without a value.
_HASH = 8
_GONE = bytes(_HASH)


@dataclass(frozen=True)
class Added:
    """What became of measurements that were handed in.

    ``known`` were there already, with the same content, or with what retention left of it.
    ``conflicting`` are identities that were there with other content: what was recorded first stays.
    ``known_ids`` names the known ones, as often as each was handed in.
    """

    new: int
    known: int
    conflicting: tuple[str, ...] = ()
    known_ids: tuple[str, ...] = field(default=(), compare=False, repr=False)


def total(parts: Iterable[Added]) -> Added:
    """What became of all parts together."""
    new = 0
    known: list[str] = []
    conflicting: list[str] = []
    for part in parts:
        new += part.new
        known += part.known_ids
        conflicting += part.conflicting
    return Added(new, len(known), tuple(conflicting), tuple(known))


@dataclass(frozen=True)
class _Content:
    """A measurement as the database gives it back: what two of one identity are compared by."""

    values: Mapping[str, Value]
    extras: Mapping[str, float]


def add_batch(connection: Connection, batch: Sequence[Measurement], *, write: bool = True) -> Added:
    """Write at most :data:`BATCH` measurements inside the transaction of ``connection``.

    Without ``write`` it is only said what would become of them.
    """
    seen = _recorded(connection, [item.id for item in batch])
    new: dict[str, _Content] = {}
    known: list[str] = []
    conflicting: list[str] = []
    marked: dict[str, str] = {}
    for item in batch:
        content = _content(item.values, item.extras)
        handed_in = _handed_in(content)
        before = seen.setdefault(item.id, handed_in)
        if before is handed_in:
            new[item.id] = content
        elif _same(before, handed_in):
            known.append(item.id)
            if handed_in is not content:  # comes from another store, which knew more
                marked[item.id] = str(content.values["implausible_why"])
        else:
            conflicting.append(item.id)
    if write:
        _insert(connection, new)
        marks.take_over(connection, marked)
    return Added(len(new), len(known), tuple(conflicting), tuple(known))


def _same(one: _Content, other: _Content) -> bool:
    """Whether both are one content, but for what has gone by age, here or where it comes from."""
    if one == other:
        return True
    gone = [n for n in PRUNED_COLUMNS if None in (one.values[n], other.values[n])]
    return _without(one, gone) == _without(other, gone)


def _without(content: _Content, names: Iterable[str]) -> _Content:
    return _Content({**content.values, **dict.fromkeys(names)}, content.extras)


def fingerprint(item: Measurement) -> bytes:
    """Hashes of what two measurements of one identity are compared by; see :func:`alike`.

    One of all that stays, then one of each column that goes by age.
    """
    content = _handed_in(_content(item.values, item.extras))
    stays = _without(content, PRUNED_COLUMNS)
    goes = (content.values[name] for name in PRUNED_COLUMNS)
    return _hash([stays.values, stays.extras]) + b"".join(map(_hash, goes))


def alike(one: bytes, other: bytes) -> bool:
    """Whether two fingerprints are of one content, by the rule of :func:`_same`."""
    places = range(0, len(one), _HASH)
    pairs = ((one[at : at + _HASH], other[at : at + _HASH]) for at in places)
    return all(a == b or _GONE in (a, b) for a, b in pairs)


def _hash(content: Any) -> bytes:
    if content is None:
        return _GONE
    document = json.dumps(content, sort_keys=True)
    return hashlib.sha256(document.encode()).digest()[:_HASH]


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
            kept[name] = list(map(float, numbers))
    return _Content(kept, {name: float(value) for name, value in extras.items()})


def _recorded(connection: Connection, ids: Iterable[str]) -> dict[str, _Content]:
    id_ = measurement.c.measurement_id
    # Most are new, which the key's index alone tells.
    known = list(connection.scalars(sa.select(id_).where(id_.in_(set(ids)))))
    if not known:
        return {}
    extras: dict[str, dict[str, float]] = {}
    for owner, name, value in connection.execute(
        sa.select(extra.c.measurement_id, extra.c.name, extra.c.value).where(
            extra.c.measurement_id.in_(known)
        )
    ):
        extras.setdefault(owner, {})[name] = value
    rows = connection.execute(wide.select(ALL_COLUMNS).where(id_.in_(known))).mappings()
    return {
        row["measurement_id"]: _handed_in(
            _Content(_unpacked(row), extras.get(row["measurement_id"], {}))
        )
        for row in rows
    }


def _unpacked(row: RowMapping) -> dict[str, Value]:
    values = {**row, **unpack(row[PASSES])}
    del values[PASSES]
    return values


def _handed_in(content: _Content) -> _Content:
    """What was handed in first: a mark came later."""
    values = content.values
    said = values["implausible_why"]
    why = marks.without(None if said is None else str(said))
    if why == said:
        return content
    unmarked = {**values, "implausible_why": why, "plausible": why is None}
    return _Content(unmarked, content.extras)


def _insert(connection: Connection, new: Mapping[str, _Content]) -> None:
    if not new:
        return
    rows = [_row(content.values) for content in new.values()]
    for dimension in DIMENSIONS:
        found = [dimension.of(content.values) for content in new.values()]
        for row, of_it in zip(rows, found, strict=True):
            row[dimension.key] = of_it["id"]
        insert_dimension(connection, dimension, found)
    connection.execute(sa.insert(measurement), rows)
    subjects = (row[SUBJECT.key] for row in rows)
    rollups.add(connection, zip(subjects, (c.values for c in new.values()), strict=True))
    extras = [
        {"measurement_id": id_, "name": name, "value": value}
        for id_, content in new.items()
        for name, value in content.extras.items()
    ]
    if extras:
        connection.execute(sa.insert(extra), extras)


def _row(values: Mapping[str, Value]) -> dict[str, Any]:
    """The measurement's own columns, without those of dimensions."""
    return {**{name: values[name] for name in OWN}, PASSES: pack(values)}


def insert_dimension(
    connection: Connection, dimension: Dimension, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write the rows of a dimension, at most :data:`BATCH` different ones, that are not there yet."""
    by_id = {row["id"]: row for row in rows}
    table = dimension_tables[dimension.name]
    there = set(connection.scalars(sa.select(table.c.id).where(table.c.id.in_(by_id))))
    missing = [row for id_, row in by_id.items() if id_ not in there]
    if missing:
        connection.execute(sa.insert(table), missing)
