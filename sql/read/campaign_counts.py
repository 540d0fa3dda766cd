"""Count of a campaign: each planned measurement once, by its last execution.

A measurement that a later attempt of its job repeated is superseded: it counts neither as measured
nor as failed.  So is a failure that the next attempt of an unfinished job is about to repeat.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, TypeVar

import sqlalchemy as sa

from treehammer.collectors.job_spec import OPEN_JOB_STATES, JobState
from treehammer.collectors.record.outcome import (
    INTERRUPTED_CLASSES,
    Outcome,
    describe_outcomes,
    is_failure,
    sum_outcomes,
)
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_sql import is_bad, is_superseded, outcome_column
from treehammer.sql.core.rows import AttemptRow, JobRow
from treehammer.sql.core.schema import attempt, job, measurement
from treehammer.sql.core.subjects import split_door_label
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import pluralize

RowT = TypeVar("RowT", bound=Mapping[str, Any])

#: Name of measurements that an ended job did not deliver although nothing is known to have failed.
UNEXPLAINED = "missing"
#: Name of measurements of jobs that were removed because their site was excluded.
EXCLUDED = "excluded"
#: Start of the message of such a job's last attempt.
EXCLUDED_MESSAGE = "site excluded"
#: Last measurements that give the pace of a campaign.
PACE_MEASUREMENTS = 50


def load_last_attempts(store: ResultsReader, jobs: Iterable[JobRow]) -> dict[str, AttemptRow]:
    """Return job id -> last attempt. Only the last attempt of a job counts."""
    # The store orders attempts by job and number.
    return {row.job_id: row for row in store.attempts(job.id for job in jobs)}


def list_selection_notes(excluded: Mapping[str, str], included: Mapping[str, str]) -> list[str]:
    """List the sites and doors that a campaign left out, and those that it used nevertheless."""
    return [
        f"{_name_place(label)} is left out: {reason}." for label, reason in excluded.items()
    ] + [
        f"{_name_place(label)} is used nevertheless: {reason}."
        for label, reason in included.items()
    ]


def _name_place(label: str) -> str:
    site, door = split_door_label(label)
    return f"Door {door} of site {site}" if door else f"Site {site}"


def is_over(jobs: Iterable[str], measured: int, planned: int) -> bool:
    """Return whether a campaign is over: every job has ended, or every planned measurement is there.

    Args:
        jobs: states of its jobs, each at least once.
        measured: its recorded measurements that count.
        planned: its planned measurements; 0 if unknown.
    """
    return 0 < planned <= measured or all(JobState(state).is_final for state in jobs)


@dataclass(frozen=True)
class MeasurementCount:
    """Planned measurements of a campaign, or of one of its sites.

    Attributes:
        jobs: state -> number of jobs.
        planned: number of planned measurements.
        outcomes: label of the outcome -> recorded measurements.
        missing: class of the failure, or state of the job -> planned measurements that ended jobs
            did not deliver.
        superseded: recorded measurements that count no more.
    """

    jobs: Counter[str] = field(default_factory=Counter)
    planned: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    superseded: int = 0

    def __add__(self, other: MeasurementCount) -> MeasurementCount:
        return MeasurementCount(
            self.jobs + other.jobs,
            self.planned + other.planned,
            self.outcomes + other.outcomes,
            self.missing + other.missing,
            self.superseded + other.superseded,
        )

    @property
    def measured(self) -> int:
        """Recorded measurements, good or not."""
        return self.outcomes.total()

    @property
    def failures(self) -> dict[str, int]:
        """Label of the outcome -> failed and implausible measurements."""
        return {
            label: count
            for label, count in sorted(self.outcomes.items())
            if is_failure(label) or label == Outcome.IMPLAUSIBLE
        }

    @property
    def failed(self) -> int:
        """Failed measurements."""
        return sum_outcomes(self.outcomes)[Outcome.FAILED]

    @property
    def implausible(self) -> int:
        """Implausible measurements."""
        return self.outcomes[Outcome.IMPLAUSIBLE.value]

    @property
    def bad(self) -> int:
        """Failed and implausible measurements."""
        return self.failed + self.implausible

    @property
    def lost(self) -> int:
        """Missing measurements that neither somebody cancelled nor a site's state prevented."""
        intended = self.missing[JobState.CANCELLED.value] + self.missing[EXCLUDED]
        return self.missing.total() - intended

    @property
    def outstanding(self) -> int:
        """Planned measurements that may still arrive."""
        return max(0, self.planned - self.measured - self.missing.total())

    @property
    def is_finished(self) -> bool:
        """Whether every job has ended."""
        return all(JobState(state).is_final for state in self.jobs)

    def describe_jobs(self) -> str:
        """Describe the jobs by state, in one line."""
        states = [state.value for state in JobState if self.jobs[state.value]]
        return ", ".join(f"{self.jobs[state]:,} {state}" for state in states)

    def describe_failures(self) -> str:
        """Describe failures by class, and measurements that will never arrive; '' without any."""
        parts = [f"{count:,} × {name}" for name, count in Counter(self.failures).most_common()]
        parts += [f"{self.lost:,} missing"] if self.lost else []
        if not parts:
            return ""
        return f"failed: {', '.join(parts)} (of {pluralize(self.planned, 'measurement')})"

    def describe(self) -> str:
        """Describe the measurements in one line; its numbers add up to the planned ones."""
        text = f"{self.measured:,} of {self.planned:,} measured"
        if parts := describe_outcomes(sum_outcomes(self.outcomes)):
            text += f" ({', '.join(parts)})"
        return "".join([text, *(f", {n:,} {name}" for name, n in sorted(self.missing.items()))])


@dataclass(frozen=True)
class CampaignCount:
    """Count of a campaign by site.

    Attributes:
        sites: site -> its count.
        remaining_s: expected seconds to the end at the pace of the last measurements; None while it
            is unknown, and if the next measurement takes longer than this pace lets expect.
    """

    sites: Mapping[str, MeasurementCount]
    remaining_s: float | None = None

    @cached_property
    def total(self) -> MeasurementCount:
        """Count of all sites."""
        return reduce(MeasurementCount.__add__, self.sites.values(), MeasurementCount())

    @property
    def is_finished(self) -> bool:
        """Whether every job has ended."""
        return self.total.is_finished


def count_campaign(store: ResultsReader, campaign_id: str, now_us: int) -> CampaignCount:
    """Count the planned measurements of a campaign.

    Args:
        store: the database.
        campaign_id: the campaign.
        now_us: current time, microseconds since 1970 UTC.
    """
    jobs = {row.id: row for row in store.jobs(campaign_id)}
    last = load_last_attempts(store, jobs.values())
    with store.connection() as connection:
        rows = list(connection.execute(_outcome_query(campaign_id)))
    sites: defaultdict[str, MeasurementCount] = defaultdict(MeasurementCount)
    recorded = _tally_recorded(sites, jobs, rows)
    _tally_planned(sites, jobs, recorded, last)
    result = CampaignCount(dict(sorted(sites.items())))
    if result.is_finished or not result.total.outstanding:
        return result
    with store.connection() as connection:
        recent = _load_recent_span(connection, campaign_id)
    if not recent:
        return result
    # The wait for the next measurement counts down; the clock of its node may be ahead.
    first_us, last_us, number = recent
    pace_us = (last_us - first_us) / number
    remaining_s = (pace_us * result.total.outstanding - max(now_us - last_us, 0)) / 1e6
    return replace(result, remaining_s=remaining_s if remaining_s > 0 else None)


def _tally_recorded(
    sites: defaultdict[str, MeasurementCount],
    jobs: Mapping[str, JobRow],
    rows: Iterable[Sequence[Any]],
) -> Counter[str]:
    """Add the rows of :func:`_outcome_query` to their sites; return the recorded number by job."""
    recorded: Counter[str] = Counter()
    for job_id, job_site, outcome, superseded, count in rows:
        site = jobs[job_id].site if job_id in jobs else job_site or ""
        tally = MeasurementCount()
        if superseded:
            tally = MeasurementCount(superseded=count)
        elif outcome not in INTERRUPTED_CLASSES:  # missing, unless the job continues
            recorded[job_id] += count
            tally = MeasurementCount(outcomes=Counter({outcome: count}))
        sites[site] += tally
    return recorded


def _tally_planned(
    sites: defaultdict[str, MeasurementCount],
    jobs: Mapping[str, JobRow],
    recorded: Counter[str],
    last: Mapping[str, AttemptRow],
) -> None:
    """Add the jobs with their planned and missing measurements to their sites."""
    for row in jobs.values():
        missing_count = row.planned_measurements - recorded[row.id]
        missing: Counter[str] = Counter()
        if missing_count > 0 and JobState(row.state).is_final:
            missing[_explain_missing(row, last.get(row.id))] = missing_count
        sites[row.site] += MeasurementCount(
            Counter([row.state]), row.planned_measurements, missing=missing
        )


def _explain_missing(row: JobRow, last: AttemptRow | None) -> str:
    if row.state == JobState.CANCELLED.value:
        is_excluded = last is not None and last.message.startswith(EXCLUDED_MESSAGE)
        return EXCLUDED if is_excluded else row.state
    if last is not None and last.failure_class:
        return last.failure_class
    return row.state if row.state == JobState.LOST.value else UNEXPLAINED


def _outcome_query(campaign_id: str) -> sa.Select[Any]:
    """Select job, site, outcome, whether superseded, and the number of measurements."""
    site = measurement_sql.catalogue_column("site")
    superseded = sa.case((is_left_out(), 1), else_=0).label("superseded")
    rows = (
        measurement_sql.select_columns(("job_id", "site"))
        .with_only_columns(
            measurement.c.job_id,
            site.label("site"),
            outcome_column().label("outcome"),
            superseded,
        )
        .where(measurement.c.campaign_id == campaign_id)
        .subquery("executions")
    )
    return sa.select(*rows.c, sa.func.count()).group_by(*rows.c)


def _load_recent_span(connection: sa.Connection, campaign_id: str) -> tuple[int, int, int] | None:
    """Load begin, end and number of the last measurements."""
    recent = (
        sa.select(measurement.c.started_us, measurement.c.ended_us)
        .where(measurement.c.campaign_id == campaign_id, measurement.c.ended_us.is_not(None))
        .order_by(measurement.c.ended_us.desc())
        .limit(PACE_MEASUREMENTS)
        .subquery("recent")
    )
    count, begin, end = (
        sa.func.count(),
        sa.func.min(recent.c.started_us),
        sa.func.max(recent.c.ended_us),
    )
    number, first, last = connection.execute(sa.select(count, begin, end)).one()
    return (int(first), int(last), int(number)) if number else None


def select_counted(rows: Iterable[RowT]) -> list[RowT]:
    """Select the measurements that count: neither superseded nor interrupted.

    Args:
        rows: measurements with ``job_id``, ``attempt``, ``round``, ``position`` and
            ``failure_class``.
    """
    rows = list(rows)
    last: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = _execution_key(row)
        last[key] = max(last.get(key, 0), row["attempt"] or 0)
    return [
        row
        for row in rows
        if (row["attempt"] or 0) == last[_execution_key(row)]
        and row["failure_class"] not in INTERRUPTED_CLASSES
    ]


def _execution_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["job_id"], row.get("round"), row.get("position")


def count_left_out(
    connection: sa.Connection, campaign_ids: Iterable[str]
) -> dict[str, Counter[str]]:
    """Count the recorded measurements of campaigns, by outcome, that their count leaves out."""
    ids = list(campaign_ids)
    columns, repeats = measurement.c, measurement.alias("repeats")
    # Few jobs have several attempts or are open; indexes alone show which.
    repeated = sa.select(repeats.c.job_id).where(
        repeats.c.campaign_id.in_(ids), repeats.c.attempt > 1
    )
    unfinished = sa.select(job.c.id).where(
        job.c.campaign_id.in_(ids), job.c.state.in_(OPEN_JOB_STATES)
    )
    by = (columns.campaign_id, outcome_column())
    selected = sa.select(*by, sa.func.count()).where(columns.campaign_id.in_(ids)).group_by(*by)
    failure_class, job_ids = columns.failure_class, repeated.union_all(unfinished)
    completed = sa.or_(failure_class.is_(None), failure_class.not_in(INTERRUPTED_CLASSES))
    queries = (
        selected.where(failure_class.in_(INTERRUPTED_CLASSES)),
        selected.where(columns.job_id.in_(job_ids), completed, is_left_out()),
    )
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for query in queries:
        for campaign_id, outcome, count in connection.execute(query):
            counts[campaign_id][outcome] += count
    return counts


def is_left_out() -> sa.ColumnElement[bool]:
    """Return whether a later attempt recorded the execution, or will repeat its failure."""
    ended = sa.and_(
        attempt.c.number == measurement.c.attempt, attempt.c.state.not_in(OPEN_JOB_STATES)
    )
    will_be_repeated = (
        sa.exists()
        .where(
            job.c.id == measurement.c.job_id,
            job.c.state.in_(OPEN_JOB_STATES),
            attempt.c.job_id == job.c.id,
            sa.or_(attempt.c.number > measurement.c.attempt, ended),
        )
        .correlate(measurement)
    )
    return sa.or_(is_superseded(), sa.and_(is_bad(), will_be_repeated))
