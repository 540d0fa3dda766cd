"""Flags of measurements: each says why a measurement is implausible, since when, and who found it.

A measurement is plausible unless it has a flag. The first ones are of its recording: the reasons of
its sender, and those that the rules of this store add. Others come later and can be taken back: it
read a bad replica, is an outlier of its series, or is in quarantine. The columns ``plausible`` and
``implausible_reasons`` summarize the flags for readers, as roll-ups summarize measurements; exported
files have nothing else of them.

A replica counts as bad from its last good check, or from the beginning, until its next good check: the
actual time of the damage is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record import plausibility
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.collectors.record.metric_catalogue import MAX_LONG_TEXT, MAX_TEXT
from treehammer.collectors.record.plausibility import SEPARATOR
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.rows import (
    BAD_REPLICA,
    LATER_KINDS,
    RECORDED,
    RULE,
    FlagRow,
    ReplicaRow,
)
from treehammer.sql.core.schema import (
    campaign_owner,
    measurement,
    quality_flag,
)
from treehammer.sql.engine.database_engine import (
    insert_missing_rows,
    load_rows_by_ids,
    split_ids,
)
from treehammer.sql.read.query_model import has_flag
from treehammer.sql.write import rollups
from treehammer.sql.write.rollups import Owner

# The summary names later flags so, and no recorded reason has this form.
_LATER_FLAG = re.compile(f"(?:^|{SEPARATOR})({'|'.join(LATER_KINDS)}): ")
#: Originators of flags that no person sets.
SENDER, STORE, IMPORT = "sender", "store", "import"
#: Later than any measurement.
OPEN_END_US = 2**62


def make_flags(values: dict[str, Any]) -> list[FlagRow]:
    """Judge a received measurement, and return its flags.

    The rules apply regardless of its sender's check, whose reasons stay. Later flags of another store
    are no part of what was recorded.

    Args:
        values: as a database returns them; ``plausible`` and ``implausible_reasons`` are set to what
            speaks against the measurement since it was recorded.
    """
    first_us = current_us()
    flags = [
        FlagRow(str(values["measurement_id"]), kind, why, set_by, first_us + place)
        for place, ((kind, set_by), why) in enumerate(_find_reasons(values).items())
    ]
    values.update(summarize_flags(flag for flag in flags if not flag.is_later))
    return flags


def _find_reasons(values: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Find the reasons against a received measurement, by kind and setter of their flags."""
    recorded, *later = _LATER_FLAG.split(values["implausible_reasons"] or "")
    broken = [
        reason for reason in plausibility.find_implausibilities(values) if reason not in recorded
    ]
    reasons = {}
    if recorded or not (values["plausible"] or later):
        reasons[RECORDED, SENDER] = recorded
    if broken:
        reasons[RULE, STORE] = SEPARATOR.join(broken)
    return reasons | {
        (kind, IMPORT): why for kind, why in zip(later[::2], later[1::2], strict=True)
    }


def summarize_flags(flags: Iterable[FlagRow]) -> dict[str, Any]:
    """Summarize the flags of a measurement, in order, as its columns for readers."""
    recorded: list[str] = []
    later: list[str] = []
    for flag in flags:
        if flag.is_later:
            later.append(f"{flag.kind}: {flag.reason}")
        else:
            recorded.append(flag.reason)
    room = MAX_LONG_TEXT - sum(len(SEPARATOR) + len(text) for text in later)
    texts = [SEPARATOR.join(filter(None, recorded))[:room], *later]
    return {
        "plausible": not (recorded or later),
        "implausible_reasons": SEPARATOR.join(filter(None, texts)) or None,
    }


def load_flags(connection: Connection, ids: Iterable[str]) -> dict[str, list[FlagRow]]:
    """Load the flags of measurements by identity, those of their recording first."""
    flags: dict[str, list[FlagRow]] = {}
    columns = quality_flag.c
    order = (columns.measurement_id, columns.set_us, columns.kind)
    query = sa.select(quality_flag).order_by(*order)
    for flag in load_rows_by_ids(connection, FlagRow, query, columns.measurement_id, ids):
        flags.setdefault(flag.measurement_id, []).append(flag)
    return flags


def add_flags(connection: Connection, flags: Sequence[FlagRow]) -> None:
    """Add flags to stored measurements in the current transaction."""
    insert_missing_rows(connection, quality_flag, flags)
    _apply_flags(connection, [flag.measurement_id for flag in flags])


def copy_flags(connection: Connection, flags: Mapping[str, Sequence[FlagRow]]) -> None:
    """Add flags of other stores, by identity, to measurements that lack flags of their kinds."""
    existing = load_flags(connection, flags)
    missing = [
        flag
        for id_, copied in flags.items()
        for flag in copied
        if flag.kind not in {present.kind for present in existing.get(id_, ())}
    ]
    add_flags(connection, missing)


def flag_measurements(
    connection: Connection,
    selected: sa.ColumnElement[bool],
    kind: str,
    reason: str,
    set_by: str,
) -> int:
    """Flag measurements that lack a flag of this kind; return their number.

    Args:
        connection: connection of a write transaction.
        selected: selects the measurements.
        kind: one of :data:`LATER_KINDS`.
        reason: for people.
        set_by: person or part of Treehammer.
    """
    reason = reason[: MAX_TEXT - len(f"{kind}: ")]
    unflagged = sa.select(measurement.c.measurement_id).where(selected, sa.not_(has_flag(kind)))
    set_us = current_us()
    ids = connection.scalars(unflagged).all()
    add_flags(connection, [FlagRow(id_, kind, reason, set_by, set_us) for id_ in ids])
    return len(ids)


def remove_flags(connection: Connection, selected: sa.ColumnElement[bool], kind: str) -> int:
    """Take back the flags of one kind; return the number of measurements.

    A measurement becomes plausible again if nothing else speaks against it.
    """
    flagged = sa.select(measurement.c.measurement_id).where(selected, has_flag(kind))
    ids = connection.scalars(flagged).all()
    for chunk in split_ids(ids):
        of_chunk = quality_flag.c.measurement_id.in_(chunk)
        connection.execute(sa.delete(quality_flag).where(of_chunk, quality_flag.c.kind == kind))
    _apply_flags(connection, ids)
    return len(ids)


def _apply_flags(connection: Connection, ids: Collection[str]) -> None:
    """Update the summaries and roll-ups of measurements whose flags have changed."""
    flags = load_flags(connection, ids)
    changes = [{"id_": id_} | summarize_flags(flags.get(id_, ())) for id_ in ids]
    owners: set[Owner] = set()
    for chunk in split_ids(ids):
        owners |= find_rollup_keys(connection, measurement.c.measurement_id.in_(chunk))
    if changes:
        of_id = measurement.c.measurement_id == sa.bindparam("id_")
        connection.execute(sa.update(measurement).where(of_id), changes)
    rollups.rebuild_rollups(connection, owners)


def flag_bad_replica_reads(connection: Connection, findings: Iterable[ReplicaRow]) -> int:
    """Flag reads of bad replicas in the current transaction; return the number of new flags."""
    marked = 0
    for finding, after_us, until_us in _find_bad_periods(findings):
        selected = sa.and_(
            reads_replica(finding),
            measurement.c.started_us > after_us,
            measurement.c.started_us <= until_us,
        )
        set_by = f"check {finding.id}"
        marked += flag_measurements(connection, selected, BAD_REPLICA, finding.message, set_by)
    return marked


def reads_replica(finding: ReplicaRow) -> sa.ColumnElement[bool]:
    """Select the measurements that a check of a replica is about."""
    column = measurement_sql.catalogue_column
    is_replica = sa.and_(
        column("dataset_hash") == finding.dataset_hash,
        column("storage_site") == finding.site,
        column("door") == finding.door,
    )
    reads = measurement_sql.measurements_where("storage_site", is_replica)
    if not finding.owner:
        return reads
    owned = sa.select(campaign_owner.c.campaign_id).where(campaign_owner.c.owner == finding.owner)
    return sa.and_(reads, measurement.c.campaign_id.in_(owned))


def find_rollup_keys(
    connection: Connection, selected: sa.ColumnElement[bool]
) -> set[tuple[int, int]]:
    """Find the days and subjects of the roll-ups that contain these measurements."""
    keys = sa.select(measurement.c.day, measurement.c.subject_id).where(selected).distinct()
    return {(day, subject_id) for day, subject_id in connection.execute(keys)}


def require_unflagged(measurement: Measurement) -> None:
    """Refuse a measurement that carries a flag; a worker cannot know of one.

    Raises:
        RecordError: the measurement carries a flag.
    """
    reasons = str(measurement.values.get("implausible_reasons") or "")
    for kind in LATER_KINDS:
        if f"{kind}: " in reasons:
            raise RecordError(f"implausible_reasons must not contain '{kind}:'")


def _find_bad_periods(findings: Iterable[ReplicaRow]) -> Iterator[tuple[ReplicaRow, int, int]]:
    """Yield the first check of each bad period with its begin and end (µs since 1970 UTC).

    A group's own checks count for its campaigns in addition to those that apply to all.
    """
    for _, replica_checks in groupby(
        sorted(findings, key=lambda finding: (*_replica_key(finding), finding.found_us)),
        key=_replica_key,
    ):
        checks = [*replica_checks]
        for owner in sorted({"", *(check.owner for check in checks)}):
            applicable = [check for check in checks if check.owner in ("", owner)]
            yield from (period for period in _split_periods(applicable) if period[0].owner == owner)


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
