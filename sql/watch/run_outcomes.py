"""Outcomes of runs: each attempt of a job by test and site, from measurements and failed attempts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.measurement_sql import has_outcome, outcome_column
from treehammer.sql.core.schema import dimension_tables, measurement
from treehammer.sql.read.failure_counts import Period, ended_within, list_lost_attempts
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.state_history import label_door

_SUBJECT = dimension_tables["subject"].c


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of one attempt of a job in one test, at a site that reads from a storage site.

    Attributes:
        site: site of the job.
        storage_site: site whose storage was read; '' if the job did not get that far.
        test: name of the test.
        campaign_id: its campaign.
        job_id: the job.
        attempt: number of the attempt.
        ended_us: end of its last measurement, or of the attempt.
        outcomes: number of measurements by outcome label; a failed attempt without any counts as one.
        measurement_id: a measurement that is not good, else any; '' without one.
        event_s: series -> mean wall time per event of its good measurements, in seconds; only if
            requested.
        by_door: label of the door, with its storage -> the part of the run that read through it.
    """

    site: str
    storage_site: str
    test: str
    campaign_id: str
    job_id: str
    attempt: int
    ended_us: int
    outcomes: Mapping[str, int]
    measurement_id: str
    event_s: Mapping[str, float] = field(default_factory=dict)
    by_door: Mapping[str, RunOutcome] = field(default_factory=dict)


def list_run_outcomes(
    store: ResultsReader, from_us: int, to_us: int, *, with_times: bool = False
) -> list[RunOutcome]:
    """List the runs that ended after ``from_us`` and until ``to_us``, by their end."""
    period = Period(from_us, to_us)
    with store.connection() as connection:
        runs = list(_list_measured_runs(connection, period))
        if with_times:
            times = _fetch_event_times(connection, period)
            runs = [
                replace(run, event_s=times.get((run.job_id, run.attempt, run.test), {}))
                for run in runs
            ]
        runs += _list_failed_attempts(connection, period)
    return sorted(runs, key=lambda run: (run.ended_us, run.job_id, run.attempt, run.test))


def _list_failed_attempts(connection: Connection, period: Period) -> Iterator[RunOutcome]:
    """List failed attempts that returned no measurement."""
    for run in list_lost_attempts(connection, Period(period.from_us + 1, period.to_us)):
        yield RunOutcome(
            site=run.site,
            storage_site="",
            test=run.test,
            campaign_id=run.campaign_id,
            job_id=run.job_id,
            attempt=run.attempt,
            ended_us=run.started_us,
            outcomes={run.failure: 1},
            measurement_id="",
        )


def _list_measured_runs(connection: Connection, period: Period) -> Iterator[RunOutcome]:
    table = measurement.c
    outcome = outcome_column()
    key = (table.job_id, table.attempt, _SUBJECT.test_name, _SUBJECT.site, _SUBJECT.storage_site)
    query = (
        sa.select(
            *key,
            table.campaign_id,
            _SUBJECT.door,
            outcome.label("outcome"),
            sa.func.count(),
            sa.func.max(table.ended_us),
            sa.func.min(table.measurement_id),
        )
        .select_from(measurement.join(dimension_tables["subject"]))
        .where(*ended_within(period))
        .group_by(*key, table.campaign_id, _SUBJECT.door, outcome)
    )
    groups: dict[tuple[Any, ...], list[_Group]] = defaultdict(list)
    for *names, door, label, count, ended_us, example in connection.execute(query):
        group = _Group(door or "", label, int(count), int(ended_us), example)
        groups[tuple(names)].append(group)
    for (job_id, number, test, site, storage, campaign_id), rows in groups.items():
        run = RunOutcome(
            site=site or "",
            storage_site=storage or site or "",
            test=test or "",
            campaign_id=campaign_id,
            job_id=job_id,
            attempt=int(number),
            ended_us=0,
            outcomes={},
            measurement_id="",
        )
        yield replace(_add_groups(run, rows), by_door=_split_by_door(run, rows))


class _Group(NamedTuple):
    """Measurements of a run with the same door and outcome."""

    door: str
    outcome: str
    measurements: int
    ended_us: int
    example: str


def _add_groups(run: RunOutcome, groups: Iterable[_Group]) -> RunOutcome:
    """Return a run with the outcomes of some of its measurements."""
    # Labels of outcomes that are not good come first.
    ordered = sorted(
        groups,
        key=lambda group: (group.outcome == Outcome.GOOD.value, group.outcome, group.example),
    )
    outcomes: Counter[str] = Counter()
    for group in ordered:
        outcomes[group.outcome] += group.measurements
    ended_us = max(group.ended_us for group in ordered)
    return replace(
        run, ended_us=ended_us, outcomes=dict(outcomes), measurement_id=ordered[0].example
    )


def _split_by_door(run: RunOutcome, groups: Iterable[_Group]) -> dict[str, RunOutcome]:
    """Return the parts of a run by the label of their door."""
    by_door: defaultdict[str, list[_Group]] = defaultdict(list)
    for group in groups:
        if group.door and run.storage_site:
            by_door[label_door(run.storage_site, group.door)].append(group)
    return {label: _add_groups(run, parts) for label, parts in by_door.items()}


def _fetch_event_times(
    connection: Connection, period: Period
) -> dict[tuple[str, int, str], dict[str, float]]:
    """Fetch the mean wall time per event of good measurements, by run and series."""
    table = measurement.c
    key = (table.job_id, table.attempt, _SUBJECT.test_name, _SUBJECT.series)
    query = (
        sa.select(*key, sa.func.avg(table.wall_per_event_s))
        .select_from(measurement.join(dimension_tables["subject"]))
        .where(
            *ended_within(period),
            has_outcome(Outcome.GOOD.value),
            table.wall_per_event_s.is_not(None),
        )
        .group_by(*key)
    )
    event_times: defaultdict[tuple[str, int, str], dict[str, float]] = defaultdict(dict)
    for job_id, number, test, series, mean_s in connection.execute(query):
        event_times[job_id, int(number), test or ""][series] = float(mean_s)
    return dict(event_times)
