"""Measurements that read a replica which was found bad: marked as implausible, never removed.

A replica is bad from when it was last found good, or from the beginning, until it is found good
again: nobody knows since when it was bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record import MAX_LONG_TEXT, MAX_TEXT
from treehammer.sql import rollups, wide
from treehammer.sql.dimensions import DIMENSION_OF
from treehammer.sql.rows import ReplicaRow
from treehammer.sql.schema import measurement
from treehammer.sql.selection import matches

#: What a mark begins with; nothing else in ``implausible_why`` does.
BAD_REPLICA = "bad replica: "
#: Between what is implausible about a measurement and a mark.
AFTER = "; "
#: Later than any measurement.
NEVER_US = 2**62


def _unmarked(dialect: str) -> sa.ColumnElement[bool]:
    why = measurement.c.implausible_why
    return sa.or_(why.is_(None), sa.not_(matches(why, f"*{BAD_REPLICA}*", dialect)))


def mark(connection: Connection, findings: Iterable[ReplicaRow]) -> int:
    """Mark what read bad replicas, inside the transaction of ``connection``; how many are new."""
    marked = 0
    owners: set[tuple[int, int]] = set()
    for finding, after_us, until_us in _bad(findings):
        why = (BAD_REPLICA + finding.message)[:MAX_TEXT]
        known = measurement.c.implausible_why
        kept = sa.func.substr(known, 1, MAX_LONG_TEXT - len(AFTER) - len(why))
        meant = sa.and_(
            _read_there(finding),
            measurement.c.started_us > after_us,
            measurement.c.started_us <= until_us,
            _unmarked(connection.dialect.name),
        )
        owners |= _owners(connection, meant)
        # Not by one UPDATE with a CASE, in which Oracle mixes no CLOB with other text.
        for some, both in ((known.is_not(None), kept + AFTER + why), (known.is_(None), why)):
            change = sa.update(measurement).where(meant, some)
            done = connection.execute(change.values(plausible=False, implausible_why=both))
            marked += done.rowcount
    rollups.remake(connection, sorted(owners))
    return marked


def _read_there(finding: ReplicaRow) -> sa.ColumnElement[bool]:
    columns = ("dataset_hash", "site", "door")
    same = sa.and_(*(wide.column(name) == getattr(finding, name) for name in columns))
    return wide.in_dimension(DIMENSION_OF["site"], same)


def take_over(connection: Connection, reasons: Mapping[str, str]) -> None:
    """Mark measurements as another store has them marked: identity -> ``implausible_why`` there."""
    owners: set[tuple[int, int]] = set()
    for id_, why in reasons.items():
        unmarked = _unmarked(connection.dialect.name)
        meant = sa.and_(measurement.c.measurement_id == id_, unmarked)
        owners |= _owners(connection, meant)
        connection.execute(
            sa.update(measurement).where(meant).values(plausible=False, implausible_why=why)
        )
    rollups.remake(connection, sorted(owners))


def _owners(connection: Connection, meant: sa.ColumnElement[bool]) -> set[tuple[int, int]]:
    """Days and subjects whose roll-ups have these measurements."""
    whose = sa.select(measurement.c.day, measurement.c.subject_id).where(meant).distinct()
    return {(day, subject_id) for day, subject_id in connection.execute(whose)}


def without(why: str | None) -> str | None:
    """What was recorded as implausible, a mark left out that came later."""
    if why is None or BAD_REPLICA not in why:
        return why
    return why.partition(BAD_REPLICA)[0].removesuffix(AFTER) or None


def _bad(findings: Iterable[ReplicaRow]) -> Iterator[tuple[ReplicaRow, int, int]]:
    """The first finding of each bad time, and when that began and ended (µs since 1970 UTC)."""
    for _, of_one in groupby(sorted(findings, key=_place_and_time), key=_place):
        yield from _times([*of_one])


def _times(findings: Sequence[ReplicaRow]) -> Iterator[tuple[ReplicaRow, int, int]]:
    after_us = -1
    first: ReplicaRow | None = None
    for finding in findings:
        if not finding.good:
            first = first or finding
            continue
        if first:
            yield first, after_us, finding.found_us
        first, after_us = None, finding.found_us
    if first:
        yield first, after_us, NEVER_US


def _place(finding: ReplicaRow) -> tuple[str, ...]:
    return finding.dataset_hash, finding.site, finding.door, finding.file


def _place_and_time(finding: ReplicaRow) -> tuple[object, ...]:
    return *_place(finding), finding.found_us
