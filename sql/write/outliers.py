"""Outliers of a series, which no single sender may use to move its means.

A range for each metric refuses impossible values; a false value within it would still
dominate every mean. Equal work needs about equal CPU time, bytes and calls, so that a value of many
times the median of its series is kept, marked and not averaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from statistics import median

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.outcomes import has_outcome
from treehammer.sql.core.schema import measurement, rollup_column_names, rollup_day
from treehammer.sql.engine.row_mapping import split_ids
from treehammer.sql.write import quality_flags
from treehammer.sql.write.rollup_keys import Owner

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
            f"{quality_flags.OUTLIER_PREFIX}{metric} is more than {factor:g} times "
            f"{middle:.4g}, the median of the same work here"
        )
        quality_flags.add_flag(
            connection, sa.and_(of_series, columns[metric] > factor * middle), flag
        )
