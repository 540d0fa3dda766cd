"""What campaigns cost: time of their jobs in slots, CPU time, and bytes that they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.measurement_sql import credible_value
from treehammer.sql.core.schema import attempt, dimension_tables, job, measurement
from treehammer.sql.read.failure_counts import Period, ended_within
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import format_significant, format_size, pluralize

_SUBJECT = dimension_tables["subject"].c


def describe_amounts(slot_s: float | None, cpu_s: float | None, read_bytes: float | None) -> str:
    """Describe times and bytes, unless unknown: ``12 slot hours, 9.1 CPU hours, 1.2 TB``."""
    times = ((slot_s, "slot hours"), (cpu_s, "CPU hours"))
    amounts = [
        f"{format_significant(seconds / 3600, 2)} {unit}"
        for seconds, unit in times
        if seconds is not None
    ]
    return ", ".join([*amounts, *([] if read_bytes is None else [format_size(read_bytes)])])


@dataclass(frozen=True)
class UsedCost:
    """Cost of executions, also of failed ones.

    Attributes:
        attempts: ended attempts of jobs.
        slot_s: their time in seconds, from start to end.
        measurements: executions that returned a measurement.
        cpu_s: CPU seconds of their set-up, stage-in and payload.
        read_bytes: bytes that they read in the loop or staged in.
    """

    attempts: int = 0
    slot_s: float = 0.0
    measurements: int = 0
    cpu_s: float = 0.0
    read_bytes: float = 0.0

    def __str__(self) -> str:
        """Describe it: ``340 measurements in 12 slot hours, 9.1 CPU hours, 1.2 TB read``."""
        return (
            f"{pluralize(self.measurements, 'measurement')} in "
            f"{describe_amounts(self.slot_s, self.cpu_s, self.read_bytes)} read"
        )

    def scale(self, factor: float) -> UsedCost:
        """Return the cost of so many times the measurements."""
        attempts, measurements = (
            round(factor * count) for count in (self.attempts, self.measurements)
        )
        return UsedCost(
            attempts,
            factor * self.slot_s,
            measurements,
            factor * self.cpu_s,
            factor * self.read_bytes,
        )

    def __add__(self, other: UsedCost) -> UsedCost:
        return UsedCost(
            self.attempts + other.attempts,
            self.slot_s + other.slot_s,
            self.measurements + other.measurements,
            self.cpu_s + other.cpu_s,
            self.read_bytes + other.read_bytes,
        )


def load_site_costs(reader: ResultsReader, period: Period) -> dict[str, UsedCost]:
    """Load what ended in a period cost each site that ran it."""
    with reader.connection() as connection:
        attempts = _sum_attempts(
            connection, job.c.site, attempt.c.ended_us.between(period.from_us, period.to_us)
        )
        executions = _sum_executions(connection, _SUBJECT.site, *ended_within(period))
    return _join(attempts, executions)


def load_campaign_cost(reader: ResultsReader, campaign_id: str) -> UsedCost:
    """Load what a campaign has cost so far."""
    with reader.connection() as connection:
        attempts = _sum_attempts(connection, job.c.campaign_id, job.c.campaign_id == campaign_id)
        executions = _sum_executions(
            connection, measurement.c.campaign_id, measurement.c.campaign_id == campaign_id
        )
    return _join(attempts, executions).get(campaign_id, UsedCost())


def _sum_attempts(
    connection: Connection, by: sa.ColumnElement[str], condition: sa.ColumnElement[bool]
) -> Mapping[str, UsedCost]:
    # Times of attempts that have not started or ended are 0.
    seconds = credible_value(attempt.c.ended_us - attempt.c.started_us) / 1e6
    query = (
        sa.select(by, sa.func.count(), sa.func.sum(seconds))
        .select_from(job.join(attempt))
        .where(attempt.c.started_us > 0, attempt.c.ended_us > attempt.c.started_us, condition)
        .group_by(by)
    )
    return {
        name or "": UsedCost(attempts=count, slot_s=float(total or 0))
        for name, count, total in connection.execute(query)
    }


def _sum_executions(
    connection: Connection, by: sa.ColumnElement[str], *conditions: sa.ColumnElement[bool]
) -> Mapping[str, UsedCost]:
    times = ("setup_cpu_s", "stagein_cpu_s", "payload_user_s", "payload_sys_s")
    cpu_s = reduce(add, (_sum(_plausible_value(name)) for name in times))
    once = _plausible_value("bytes_read") + sa.func.coalesce(
        _plausible_value("bytes_read_extra"), 0
    )
    staged = _plausible_value("stagein_bytes")
    # As for the budgets of patrol, of executions that stage their files in only these.
    read_bytes = sa.case((staged > 0, staged), else_=once * _plausible_value("passes_done"))
    sums = (cpu_s, _sum(read_bytes))
    query = (
        sa.select(by, sa.func.count(), *sums)
        .select_from(measurement.join(dimension_tables["subject"]))
        .where(*conditions)
        .group_by(by)
    )
    return {
        name or "": UsedCost(measurements=count, cpu_s=float(cpu), read_bytes=float(size))
        for name, count, cpu, size in connection.execute(query)
    }


def _sum(value: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.func.coalesce(sa.func.sum(value), 0)


def _plausible_value(name: str) -> sa.ColumnElement[float]:
    """Return a metric as a real number; NULL where it cannot be true, which would hide all others."""
    value, limits = credible_value(measurement.c[name]), METRICS_BY_NAME[name].plausible_range
    return sa.case((value.between(*limits), value), else_=None) if limits else value


def _join(*parts: Mapping[str, UsedCost]) -> dict[str, UsedCost]:
    names = {name for part in parts for name in part}
    return {
        name: sum((part.get(name, UsedCost()) for part in parts), UsedCost())
        for name in sorted(names)
    }
