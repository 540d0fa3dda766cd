"""Outliers of series: values far from those that other senders measured of the same work.

A range for each metric refuses impossible values; a false value within it would still dominate every
mean. Equal work needs about equal CPU time, bytes and calls, so that a value of many times the
reference of its series, or of a small part of it, is kept, marked and not averaged.

Each sender with enough values has one vote, the median of its values, however many it sends. The
reference is the median of the votes. Of an even number the newest sender has none, so that of two the
earlier one counts. Beside other senders the limits are narrower; for waits only if a sender's own median
is off, since a single one may be long.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from itertools import chain
from statistics import median
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.measurement_sql import GOOD_ROLLUPS, has_outcome
from treehammer.sql.core.rows import LOCAL_OWNER, OUTLIER
from treehammer.sql.core.schema import (
    measurement,
    quality_flag,
    receipt,
    rollup_column_names,
    rollup_day,
)
from treehammer.sql.engine.database_engine import load_by_ids, split_ids
from treehammer.sql.write.audit_trail import MEASUREMENTS
from treehammer.sql.write.quality_flags import STORE, flag_measurements, remove_flags
from treehammer.sql.write.rollups import Owner


class OutlierLimit(NamedTuple):
    """Factors below and above the reference from which a value is an outlier."""

    below: float
    above: float


_WORK = OutlierLimit(100, 100)
# Waits vary more than work: a door that hangs for minutes is no mistake.
_WALL = OutlierLimit(100, 10_000)
_RATE = OutlierLimit(10_000, 100)
_EFFICIENCY = OutlierLimit(10_000, 20)
#: Limits of the metrics of equal work.
OUTLIER_LIMITS: Mapping[str, OutlierLimit] = {
    "cpu_per_event_s": _WORK,
    "loop_cpu_s": _WORK,
    "bytes_read": _WORK,
    "read_calls": _WORK,
    "tree_peak_rss_bytes": _WORK,
    "event_rate_hz": _RATE,
    "eff_job": _EFFICIENCY,
    "eff_payload": _EFFICIENCY,
    "eff_loop": _EFFICIENCY,
    "wall_per_event_s": _WALL,
    "loop_wall_s": _WALL,
}
#: Days before the newest measurement that are compared.
WINDOW_DAYS = 30
#: A sender needs as many values for a vote, and a series for a reference.
MIN_VALUES = 5
#: Of a single sender more are no outliers, but a change of its work.
MAX_OUTLIER_SHARE = 0.25
#: A series is examined if a new value is this factor from its mean, or if the ratio of mean square to
#: squared mean is as large; without outliers it is 1 plus the square of the relative spread.
_SUSPICIOUS_FACTOR = 3.0

_SELECT_EXTREMES = sa.select(
    measurement.c.subject_id,
    *(
        extreme(measurement.c[name])
        for name in OUTLIER_LIMITS
        for extreme in (sa.func.min, sa.func.max)
    ),
)
_SELECT_SUMS = sa.select(
    rollup_day.c.subject_id,
    *(
        sa.func.sum(rollup_day.c[column])
        for name in OUTLIER_LIMITS
        for column in rollup_column_names(name)
    ),
)


class _Value(NamedTuple):
    """Value of a metric in a measurement, with the sender and the time of its first request."""

    measurement_id: str
    sender: str
    since_us: int
    number: float


def flag_outliers(connection: Connection, owners: Collection[Owner]) -> None:
    """Flag the outliers of the series that a transaction added to, and take back earlier flags.

    Args:
        connection: connection of a write transaction, whose roll-ups are written.
        owners: days and subjects of the new measurements.
    """
    newest = number_to_day(max((day for day, _ in owners), default=0))
    if newest is None:
        return
    first_day = day_to_number(newest - timedelta(days=WINDOW_DAYS))
    for subject_id in sorted(_find_suspects(connection, owners, first_day)):
        _judge_series(connection, subject_id, first_day)


def _find_suspects(
    connection: Connection, owners: Collection[Owner], first_day: int
) -> Iterator[int]:
    """Yield the subjects with new values far from the mean, or with a few values far from the others."""
    columns = measurement.c
    days, subject_ids = map(set, zip(*owners, strict=True))
    for ids in split_ids(subject_ids):
        of_days = sa.and_(
            columns.subject_id.in_(ids),
            columns.day.in_(days),
            columns.kind == TIMED,
            has_outcome(Outcome.GOOD),
        )
        new_extremes = {
            subject_id: values
            for subject_id, *values in connection.execute(
                _SELECT_EXTREMES.where(of_days).group_by(columns.subject_id)
            )
        }
        query = (
            _SELECT_SUMS.where(rollup_day.c.subject_id.in_(ids), rollup_day.c.day >= first_day)
            .where(*GOOD_ROLLUPS)
            .group_by(rollup_day.c.subject_id)
        )
        for subject_id, *totals in connection.execute(query):
            bounds = new_extremes.get(subject_id, [])
            if any(
                _is_suspicious(*totals[3 * place :][:3], *bounds[2 * place :][:2])
                for place in range(len(bounds) // 2)
            ):
                yield subject_id


def _is_suspicious(
    count: int | None,
    total: float | None,
    squares: float | None,
    low: float | None,
    high: float | None,
) -> bool:
    """Decide by the sums of a series, and by the extremes of its new values."""
    if not count or count < MIN_VALUES or not total or total <= 0 or squares is None:
        return False
    # PostgreSQL sums integers to decimals.
    mean = float(total) / float(count)
    is_spread = float(squares) / float(count) > _SUSPICIOUS_FACTOR * mean * mean
    is_low = low is not None and low * _SUSPICIOUS_FACTOR < mean
    return is_spread or is_low or (high is not None and high > _SUSPICIOUS_FACTOR * mean)


def _judge_series(connection: Connection, subject_id: int, first_day: int) -> None:
    """Set the flags of one series to what its values say today."""
    values_by_metric, flagged_ids = _load_values(connection, subject_id, first_day)
    reasons: dict[str, str] = {}
    for metric, values in values_by_metric.items():
        reasons = dict(_find_outliers(metric, values)) | reasons
    columns = measurement.c
    for chunk in split_ids(flagged_ids - reasons.keys()):
        remove_flags(connection, columns.measurement_id.in_(chunk), OUTLIER)
    ids_by_reason: dict[str, list[str]] = {}
    for measurement_id, reason in reasons.items():
        if measurement_id not in flagged_ids:
            ids_by_reason.setdefault(reason, []).append(measurement_id)
    for reason, ids in ids_by_reason.items():
        for chunk in split_ids(ids):
            selected = columns.measurement_id.in_(chunk)
            flag_measurements(connection, selected, OUTLIER, reason, STORE)


def _load_values(
    connection: Connection, subject_id: int, first_day: int
) -> tuple[dict[str, list[_Value]], set[str]]:
    """Load the values of a series by metric, and the measurements that are flagged as outliers.

    Measurements with other flags have no vote.
    """
    columns, flags = measurement.c, quality_flag.c
    of_measurement = flags.measurement_id == columns.measurement_id
    is_outlier = sa.and_(of_measurement, flags.kind == OUTLIER, flags.set_by == STORE)
    has_own_flag = sa.exists().where(is_outlier).correlate(measurement)
    has_other_flag = (
        sa.exists()
        .where(of_measurement, sa.or_(flags.kind != OUTLIER, flags.set_by != STORE))
        .correlate(measurement)
    )
    rows = connection.execute(
        sa.select(
            columns.measurement_id,
            columns.job_id,
            columns.plausible,
            *(columns[name] for name in OUTLIER_LIMITS),
        ).where(
            columns.subject_id == subject_id,
            columns.day >= first_day,
            columns.kind == TIMED,
            columns.failure_class.is_(None),
            sa.or_(columns.plausible == sa.true(), sa.and_(has_own_flag, sa.not_(has_other_flag))),
        )
    ).all()
    # The key that sent a job's measurements first, and the time of that request.
    entry = receipt.c
    query = sa.select(entry.subject, entry.key_id, entry.received_us)
    query = query.where(entry.kind == MEASUREMENTS).order_by(entry.received_us.desc())
    receipts = load_by_ids(connection, query, entry.subject, {row.job_id for row in rows})
    senders = {job_id: (key_id, received_us) for job_id, key_id, received_us in receipts}
    values: dict[str, list[_Value]] = {name: [] for name in OUTLIER_LIMITS}
    for row in rows:
        sender = senders.get(row.job_id, (LOCAL_OWNER, 0))
        for name, number in zip(OUTLIER_LIMITS, row[3:], strict=True):
            if number is not None:
                values[name].append(_Value(row.measurement_id, *sender, float(number)))
    return values, {row.measurement_id for row in rows if not row.plausible}


def _find_outliers(metric: str, values: list[_Value]) -> Iterator[tuple[str, str]]:
    """Yield the measurements with an outlier of a metric, each with the reason."""
    numbers_by_sender: dict[str, list[float]] = {}
    for value in sorted(values, key=lambda value: value.since_us):
        numbers_by_sender.setdefault(value.sender, []).append(value.number)
    reference, has_others = _find_reference(numbers_by_sender.values())
    if reference <= 0:
        return
    limit = OUTLIER_LIMITS[metric]
    limits = dict.fromkeys(numbers_by_sender, limit)
    if has_others:
        limits = _narrow_limits(limit, numbers_by_sender, reference)
    outliers = [v for v in values if _is_beyond(v.number, reference, limits[v.sender])]
    if has_others or len(outliers) <= MAX_OUTLIER_SHARE * len(values):
        for value in outliers:
            limit = limits[value.sender]
            relation = f"less than 1/{limit.below:.3g} of"
            if value.number > reference:
                relation = f"more than {limit.above:.3g} times"
            reason = f"{metric} is {relation} {reference:.4g}, the median of the same work here"
            yield value.measurement_id, reason


def _find_reference(series: Collection[list[float]]) -> tuple[float, bool]:
    """Find the reference of senders, the earliest first, 0 for none, and whether it is of several."""
    numbers = [*chain.from_iterable(series)]
    if len(numbers) < MIN_VALUES:
        return 0, False
    votes = [median(of_sender) for of_sender in series if len(of_sender) >= MIN_VALUES]
    # Without a vote all values have one; of an even number the newest sender has none.
    reference = median(votes[: len(votes) - 1 + len(votes) % 2] or numbers)
    return reference, bool(votes) and len(series) > 1


def _narrow_limits(
    limit: OutlierLimit, numbers_by_sender: Mapping[str, list[float]], reference: float
) -> dict[str, OutlierLimit]:
    """Choose limits beside other senders: narrower for work, and for waits of one that is off."""
    narrow = OutlierLimit(*map(math.sqrt, limit))
    return {
        sender: narrow
        if limit is _WORK or _is_beyond(median(numbers), reference, narrow)
        else limit
        for sender, numbers in numbers_by_sender.items()
    }


def _is_beyond(number: float, reference: float, limit: OutlierLimit) -> bool:
    return number > reference * limit.above or number * limit.below < reference
