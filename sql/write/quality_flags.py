"""Flags of measurements that read a bad replica: marked as implausible, never removed.

A replica counts as bad from its last good check, or from the beginning, until its next good check:
the actual time of the damage is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.collectors.record.metric_catalogue import MAX_LONG_TEXT, MAX_TEXT
from treehammer.sql.core import measurement_view
from treehammer.sql.core.dimensions import DIMENSION_OF
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.core.schema import measurement
from treehammer.sql.read.measurement_selection import match_pattern
from treehammer.sql.write import rollups

#: Prefix of a flag; no other text in ``implausible_reasons`` has it.
BAD_REPLICA_PREFIX = "bad replica: "
#: Separator between the recorded reasons and a flag.
SEPARATOR = "; "
#: Later than any measurement.
OPEN_END_US = 2**62


def _is_unflagged(dialect: str) -> sa.ColumnElement[bool]:
    why = measurement.c.implausible_reasons
    return sa.or_(why.is_(None), sa.not_(match_pattern(why, f"*{BAD_REPLICA_PREFIX}*", dialect)))


def flag_bad_replica_reads(connection: Connection, findings: Iterable[ReplicaRow]) -> int:
    """Flag reads of bad replicas in the current transaction; return the number of new flags."""
    marked = 0
    owners: set[tuple[int, int]] = set()
    for finding, after_us, until_us in _find_bad_periods(findings):
        why = (BAD_REPLICA_PREFIX + finding.message)[:MAX_TEXT]
        known = measurement.c.implausible_reasons
        kept = sa.func.substr(known, 1, MAX_LONG_TEXT - len(SEPARATOR) - len(why))
        meant = sa.and_(
            _read_bad_replica(finding),
            measurement.c.started_us > after_us,
            measurement.c.started_us <= until_us,
            _is_unflagged(connection.dialect.name),
        )
        owners |= _find_rollup_keys(connection, meant)
        # Not one UPDATE with CASE: Oracle cannot mix CLOB and other text in it.
        for some, both in ((known.is_not(None), kept + SEPARATOR + why), (known.is_(None), why)):
            change = sa.update(measurement).where(meant, some)
            done = connection.execute(change.values(plausible=False, implausible_reasons=both))
            marked += done.rowcount
    rollups.rebuild_rollups(connection, sorted(owners))
    return marked


def _read_bad_replica(finding: ReplicaRow) -> sa.ColumnElement[bool]:
    column = measurement_view.catalogue_column
    same = sa.and_(
        column("dataset_hash") == finding.dataset_hash,
        column("storage_site") == finding.site,
        column("door") == finding.door,
    )
    return measurement_view.measurements_in_dimension(DIMENSION_OF["storage_site"], same)


def copy_flags(connection: Connection, reasons: Mapping[str, str]) -> None:
    """Copy flags from another store: identity -> ``implausible_reasons`` there."""
    owners: set[tuple[int, int]] = set()
    for id_, why in reasons.items():
        unmarked = _is_unflagged(connection.dialect.name)
        meant = sa.and_(measurement.c.measurement_id == id_, unmarked)
        owners |= _find_rollup_keys(connection, meant)
        connection.execute(
            sa.update(measurement).where(meant).values(plausible=False, implausible_reasons=why)
        )
    rollups.rebuild_rollups(connection, sorted(owners))


def _find_rollup_keys(
    connection: Connection, meant: sa.ColumnElement[bool]
) -> set[tuple[int, int]]:
    """Find the days and subjects of the roll-ups that contain these measurements."""
    whose = sa.select(measurement.c.day, measurement.c.subject_id).where(meant).distinct()
    return {(day, subject_id) for day, subject_id in connection.execute(whose)}


def require_unflagged(measurement: Measurement) -> None:
    """Refuse a measurement that carries a flag; a worker cannot know of a bad replica.

    Raises:
        RecordError: the measurement carries a flag.
    """
    if BAD_REPLICA_PREFIX in str(measurement.values.get("implausible_reasons") or ""):
        raise RecordError(f"implausible_reasons must not contain {BAD_REPLICA_PREFIX.strip()!r}")


def strip_flag(why: str | None) -> str | None:
    """Return the recorded implausibility without a flag added later."""
    if why is None or BAD_REPLICA_PREFIX not in why:
        return why
    return why.partition(BAD_REPLICA_PREFIX)[0].removesuffix(SEPARATOR) or None


def _find_bad_periods(findings: Iterable[ReplicaRow]) -> Iterator[tuple[ReplicaRow, int, int]]:
    """Yield the first check of each bad period with its begin and end (µs since 1970 UTC)."""
    for _, of_one in groupby(sorted(findings, key=_replica_time_key), key=_replica_key):
        yield from _split_periods([*of_one])


def _split_periods(findings: Sequence[ReplicaRow]) -> Iterator[tuple[ReplicaRow, int, int]]:
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
        yield first, after_us, OPEN_END_US


def _replica_key(finding: ReplicaRow) -> tuple[str, ...]:
    return finding.dataset_hash, finding.site, finding.door, finding.file


def _replica_time_key(finding: ReplicaRow) -> tuple[object, ...]:
    return *_replica_key(finding), finding.found_us
