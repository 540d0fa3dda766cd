"""Flags that mark measurements as implausible after they were recorded, and can be taken back.

A flag is text after the recorded reasons. It says that the measurement read a bad replica, is an
outlier of its series, or is in quarantine. A replica counts as bad from its last good check, or from
the beginning, until its next good check: the actual time of the damage is unknown.

Outliers of a series are flagged, so that no single sender can move its means. A range for each metric
refuses impossible values; a false value within it would still dominate every mean. Equal work needs about equal CPU time, bytes and calls, so that a value of many
times the median of its series is kept, marked and not averaged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from statistics import median
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record import value_checks
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.collectors.record.measurement_record import Measurement, RecordError
from treehammer.collectors.record.metric_catalogue import MAX_LONG_TEXT, MAX_TEXT
from treehammer.collectors.record.outcome import Outcome
from treehammer.collectors.record.value_checks import SEPARATOR
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_columns import DIMENSION_OF
from treehammer.sql.core.measurement_sql import has_outcome
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.core.schema import campaign_owner, measurement, rollup_column_names, rollup_day
from treehammer.sql.engine.database_engine import split_ids
from treehammer.sql.read.query_model import match_pattern
from treehammer.sql.write import rollups
from treehammer.sql.write.rollups import Owner

#: Prefixes of flags; no recorded text in ``implausible_reasons`` has them.
BAD_REPLICA_PREFIX, QUARANTINE_PREFIX = "bad replica: ", "quarantined: "
OUTLIER_PREFIX = "outlier: "
FLAG_PREFIXES = (BAD_REPLICA_PREFIX, QUARANTINE_PREFIX, OUTLIER_PREFIX)
_FLAG_START = re.compile(f"(?:^|{SEPARATOR})(?={'|'.join(FLAG_PREFIXES)})")
#: Later than any measurement.
OPEN_END_US = 2**62
#: Metric of equal work -> multiple of its series' median from which a value is an outlier. Waits
#: vary more than work: a door that hangs for minutes is no mistake.
OUTLIER_FACTORS: Mapping[str, float] = {
    "cpu_per_event_s": 100,
    "loop_cpu_s": 100,
    "bytes_read": 100,
    "read_calls": 100,
    "tree_peak_rss_bytes": 100,
    "event_rate_hz": 100,
    "eff_job": 20,
    "eff_payload": 20,
    "eff_loop": 20,
    "wall_per_event_s": 10_000,
    "loop_wall_s": 10_000,
}
#: Days before the newest measurement that are compared.
WINDOW_DAYS = 30
#: Fewer values have no median that several senders agree on.
MIN_VALUES = 5
#: More are no outliers, but a change of the series.
MAX_OUTLIER_SHARE = 0.25
#: Ratio of mean square to squared mean from which single values are examined; without outliers it
#: is 1 plus the square of the relative spread.
_SUSPICIOUS_RATIO = 3.0


def has_flag(prefix: str, dialect: str) -> sa.ColumnElement[bool]:
    """Select the measurements with a flag."""
    why = measurement.c.implausible_reasons
    return sa.and_(why.is_not(None), match_pattern(why, f"*{prefix}*", dialect))


def recheck_plausibility(values: dict[str, Any]) -> None:
    """Check the plausibility of a received measurement in place, regardless of its sender's check.

    The sender's own reasons stay, and flags of another store.
    """
    reasons = values["implausible_reasons"] or ""
    recorded = strip_flags(reasons) or ""
    missing = [
        reason for reason in value_checks.find_implausibilities(values) if reason not in recorded
    ]
    if missing:
        flags = reasons[len(recorded) :].removeprefix(SEPARATOR)
        judged = SEPARATOR.join(filter(None, (recorded, *missing, flags)))
        values.update(implausible_reasons=judged[:MAX_LONG_TEXT], plausible=False)


def add_flag(connection: Connection, selected: sa.ColumnElement[bool], flag: str) -> int:
    """Flag measurements that lack a flag of this kind; return their number.

    Args:
        connection: connection of a write transaction.
        selected: selects the measurements.
        flag: text that starts with one of :data:`FLAG_PREFIXES`.
    """
    prefix = next(prefix for prefix in FLAG_PREFIXES if flag.startswith(prefix))
    flag = flag[:MAX_TEXT]
    reasons = measurement.c.implausible_reasons
    shortened = sa.func.substr(reasons, 1, MAX_LONG_TEXT - len(SEPARATOR) - len(flag))
    unflagged = sa.and_(selected, sa.not_(has_flag(prefix, connection.dialect.name)))
    owners = find_rollup_keys(connection, unflagged)
    marked = 0
    # Not one UPDATE with CASE: Oracle cannot mix CLOB and other text in it.
    for condition, new_reasons in (
        (reasons.is_not(None), shortened + SEPARATOR + flag),
        (reasons.is_(None), flag),
    ):
        change = sa.update(measurement).where(unflagged, condition)
        result = connection.execute(change.values(plausible=False, implausible_reasons=new_reasons))
        marked += result.rowcount
    rollups.rebuild_rollups(connection, owners)
    return marked


def remove_flags(connection: Connection, selected: sa.ColumnElement[bool], prefix: str) -> int:
    """Take back the flags of one kind; return the number of measurements.

    A measurement becomes plausible again if nothing else speaks against it.

    Args:
        connection: connection of a write transaction.
        selected: selects the measurements.
        prefix: one of :data:`FLAG_PREFIXES`.
    """
    flagged = sa.and_(selected, has_flag(prefix, connection.dialect.name))
    owners = find_rollup_keys(connection, flagged)
    query = sa.select(measurement.c.measurement_id, measurement.c.implausible_reasons)
    changes = []
    for id_, why in connection.execute(query.where(flagged)).all():
        left = [part for part in _FLAG_START.split(why) if part and not part.startswith(prefix)]
        changes.append({"id_": id_, "why": SEPARATOR.join(left) or None, "good": not left})
    if changes:
        change = sa.update(measurement).where(measurement.c.measurement_id == sa.bindparam("id_"))
        connection.execute(
            change.values(plausible=sa.bindparam("good"), implausible_reasons=sa.bindparam("why")),
            changes,
        )
    rollups.rebuild_rollups(connection, owners)
    return len(changes)


def flag_bad_replica_reads(connection: Connection, findings: Iterable[ReplicaRow]) -> int:
    """Flag reads of bad replicas in the current transaction; return the number of new flags."""
    marked = 0
    for finding, after_us, until_us in _find_bad_periods(findings):
        selected = sa.and_(
            reads_replica(finding),
            measurement.c.started_us > after_us,
            measurement.c.started_us <= until_us,
        )
        marked += add_flag(connection, selected, BAD_REPLICA_PREFIX + finding.message)
    return marked


def reads_replica(finding: ReplicaRow) -> sa.ColumnElement[bool]:
    """Select the measurements that a check of a replica is about."""
    column = measurement_sql.catalogue_column
    is_replica = sa.and_(
        column("dataset_hash") == finding.dataset_hash,
        column("storage_site") == finding.site,
        column("door") == finding.door,
    )
    reads = measurement_sql.measurements_in_dimension(DIMENSION_OF["storage_site"], is_replica)
    if not finding.owner:
        return reads
    owned = sa.select(campaign_owner.c.campaign_id).where(campaign_owner.c.owner == finding.owner)
    return sa.and_(reads, measurement.c.campaign_id.in_(owned))


def copy_flags(connection: Connection, reasons: Mapping[str, str]) -> None:
    """Copy flags from another store: identity -> ``implausible_reasons`` there."""
    owners: set[tuple[int, int]] = set()
    for id_, why in reasons.items():
        dialect = connection.dialect.name
        unmarked = (sa.not_(has_flag(prefix, dialect)) for prefix in FLAG_PREFIXES)
        selected = sa.and_(measurement.c.measurement_id == id_, *unmarked)
        owners |= find_rollup_keys(connection, selected)
        connection.execute(
            sa.update(measurement).where(selected).values(plausible=False, implausible_reasons=why)
        )
    rollups.rebuild_rollups(connection, owners)


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
    why = str(measurement.values.get("implausible_reasons") or "")
    for prefix in FLAG_PREFIXES:
        if prefix in why:
            raise RecordError(f"implausible_reasons must not contain {prefix.strip()!r}")


def strip_flags(why: str | None) -> str | None:
    """Return the recorded implausibility without flags added later."""
    if why is None:
        return None
    starts = [why.find(prefix) for prefix in FLAG_PREFIXES if prefix in why]
    return why[: min(starts)].removesuffix(SEPARATOR) or None if starts else why


def _find_bad_periods(findings: Iterable[ReplicaRow]) -> Iterator[tuple[ReplicaRow, int, int]]:
    """Yield the first check of each bad period with its begin and end (µs since 1970 UTC).

    A group's own checks count for its campaigns in addition to those that apply to all.
    """
    for _, replica_checks in groupby(sorted(findings, key=_replica_time_key), key=_replica_key):
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


def _replica_time_key(finding: ReplicaRow) -> tuple[object, ...]:
    return *_replica_key(finding), finding.found_us


def flag_outliers(connection: Connection, owners: Collection[Owner]) -> None:
    """Flag the outliers of the series that a transaction added to, also earlier ones.

    Args:
        connection: connection of a write transaction, whose roll-ups are written.
        owners: days and subjects of the new measurements.
    """
    if not owners:
        return
    newest = number_to_day(max(day for day, _ in owners))
    if newest is None:
        return
    first_day = day_to_number(newest - timedelta(days=WINDOW_DAYS))
    for subject_id, metric in _list_suspects(connection, {id_ for _, id_ in owners}, first_day):
        _flag_series(connection, subject_id, metric, first_day)


def _list_suspects(
    connection: Connection, subjects: Iterable[int], first_day: int
) -> Iterator[tuple[int, str]]:
    """List subjects and metrics whose sums show that a few values are far from the others."""
    columns = rollup_day.c
    sums = [
        sa.func.sum(columns[name])
        for metric in OUTLIER_FACTORS
        for name in rollup_column_names(metric)
    ]
    for ids in split_ids(subjects):
        query = (
            sa.select(columns.subject_id, *sums)
            .where(
                columns.subject_id.in_(ids),
                columns.day >= first_day,
                columns.kind == TIMED,
                columns.outcome == Outcome.GOOD.value,
            )
            .group_by(columns.subject_id)
        )
        for subject_id, *values in connection.execute(query):
            for place, metric in enumerate(OUTLIER_FACTORS):
                count, total, squares = (
                    float(value or 0) for value in values[3 * place : 3 * place + 3]
                )
                if count >= MIN_VALUES and count * squares > _SUSPICIOUS_RATIO * total * total:
                    yield subject_id, metric


def _flag_series(connection: Connection, subject_id: int, metric: str, first_day: int) -> None:
    """Flag the values of one series that are many times its median."""
    columns = measurement.c
    of_series = sa.and_(
        columns.subject_id == subject_id,
        columns.day >= first_day,
        columns.kind == TIMED,
        has_outcome(Outcome.GOOD),
        columns[metric].is_not(None),
    )
    values = [
        float(value) for value in connection.scalars(sa.select(columns[metric]).where(of_series))
    ]
    if len(values) < MIN_VALUES:
        return
    middle, factor = median(values), OUTLIER_FACTORS[metric]
    outliers = sum(value > factor * middle for value in values)
    if middle > 0 and 0 < outliers <= MAX_OUTLIER_SHARE * len(values):
        flag = (
            f"{OUTLIER_PREFIX}{metric} is more than {factor:g} times "
            f"{middle:.4g}, the median of the same work here"
        )
        add_flag(connection, sa.and_(of_series, columns[metric] > factor * middle), flag)
