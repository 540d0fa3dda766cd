"""Counts of good and failed measurements by site, storage, test, release, door, host and commit.

Counts of whole days are read once; single measurements are read of the failures at one
site or storage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.outcome import UNSUPPORTED_LABELS, Outcome
from treehammer.sql.core.measurement_sql import (
    is_bad,
    load_subjects,
    outcome_column,
    select_subjects,
)
from treehammer.sql.core.rows import QUARANTINED
from treehammer.sql.core.schema import attempt, campaign, dimension_tables, job, measurement
from treehammer.sql.engine.database_engine import load_by_ids
from treehammer.sql.read.overview_queries import JOB_SITE
from treehammer.sql.read.query_model import has_flag
from treehammer.sql.read.reader import ResultsReader

#: Days before a period in which campaigns with jobs in it were submitted.
SUBMISSION_DAYS = 14
#: Failures of a site that are read one by one.
MAX_DETAILS = 20_000
#: Messages that are read of these.
MAX_MESSAGES = 50
#: Campaigns of other commits, and of the same ones, that are read besides, the newest first.
MAX_OTHER_CAMPAIGNS = 3
#: Days that an execution may take; measurements are found by the day of their start.
MAX_EXECUTION_DAYS = 3


@dataclass(frozen=True)
class Period:
    """Time from ``from_us`` until ``to_us``, in microseconds since 1970 UTC."""

    from_us: int
    to_us: int

    @classmethod
    def of_day(cls, time_us: int) -> Period:
        """Return the UTC day of a time."""
        start = time_us // DAY_US * DAY_US
        return cls(start, start + DAY_US - 1)

    @property
    def days(self) -> tuple[int, int]:
        """First and last day (YYYYMMDD)."""
        return _number_day(self.from_us), _number_day(self.to_us)

    @property
    def is_whole(self) -> bool:
        """Whether it consists of whole days."""
        return self.from_us % DAY_US == 0 and self.to_us % DAY_US == DAY_US - 1

    def covers(self, time_us: int) -> bool:
        """Return whether a time is in the period."""
        return self.from_us <= time_us <= self.to_us

    def extend(self, days: int) -> Period:
        """Return the period with so many more days before it."""
        return Period(max(0, self.from_us - days * DAY_US), self.to_us)


@dataclass(frozen=True)
class Tally:
    """Failed and all measurements."""

    bad: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """Share that failed; 0 without any."""
        return self.bad / self.total if self.total else 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.bad + other.bad, self.total + other.total)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.bad - other.bad, self.total - other.total)

    def __str__(self) -> str:
        return f"{self.bad:,} of {self.total:,}"

    def per_job(self, failures: float) -> Tally:
        """Return independent numbers, where a failing job has so many failures."""
        bad = round(self.bad / failures)
        return Tally(bad, max(bad, round(self.total / failures)))


class FailureSign(NamedTuple):
    """Signs of the cause of a failure: its label and finer kind, and a message, '' if it was not read."""

    failure: str
    kind: str
    message: str


@dataclass(frozen=True)
class OutcomeCell:
    """Measurements of one site, storage site, test, release and door: good ones, and failures by sign.

    A job that ended without a measurement counts as one failure; its storage and release are ''.
    """

    site: str
    storage_site: str
    test: str
    release: str
    door: str
    good: int
    failures: Mapping[FailureSign, int]

    @property
    def tally(self) -> Tally:
        """Failed and all measurements."""
        bad = sum(self.failures.values())
        return Tally(bad, bad + self.good)


@dataclass(frozen=True)
class FailedRun:
    """Failures of one class and kind in an attempt of a job.

    Attributes:
        place: site, storage site, test, release and door.
        campaign_id: its campaign.
        job_id: the job.
        attempt: number of the attempt.
        sign: signs of their cause, with one of the messages if it was read.
        started_us: start of the first one; end of an attempt without a measurement.
        count: number of failures.
    """

    place: tuple[str, ...]
    campaign_id: str
    job_id: str
    attempt: int
    sign: FailureSign
    started_us: int
    count: int = 1

    @property
    def site(self) -> str:
        """Site of the job."""
        return self.place[0]

    @property
    def storage_site(self) -> str:
        """Site whose storage was read; '' if the job did not get that far."""
        return self.place[1]

    @property
    def test(self) -> str:
        """Name of the test."""
        return self.place[2]


@dataclass
class CommitCounts:
    """Measurements of a test at one commit.

    Attributes:
        commit: the commit.
        submitted_us: time of its first campaign in the period.
        by_site: its measurements by site.
    """

    commit: str
    submitted_us: int
    by_site: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))

    @property
    def tally(self) -> Tally:
        """Measurements at all sites."""
        return sum(self.by_site.values(), Tally())


#: Site, storage site, test, release and door of a subject or a job.
_PLACE = ("site", "storage_site", "test_name", "axis_root", "door")
#: Subject, signs, and number of measurements.
_SubjectCount = tuple[int, FailureSign, int]


class PeriodCounts:
    """Counts of a period: exact at one site or storage, of whole days elsewhere.

    Counts of days are read once, so that many sites can be asked for.

    Args:
        store: the database.
    """

    def __init__(self, store: ResultsReader) -> None:
        self._store = store
        self._by_day: dict[tuple[int, int], Sequence[_SubjectCount]] = {}
        self._lost: dict[tuple[int, int], Sequence[FailedRun]] = {}

    def list_failed_runs(self, by: str, site: str, period: Period) -> list[FailedRun]:
        """List the failures of a site, or of the storage of a site, by attempt of a job.

        Args:
            by: :data:`.overview_queries.JOB_SITE` or :data:`.overview_queries.STORAGE_SITE`.
            site: name of the site.
            period: the time in which they ended; of whole days, those that started.
        """
        with self._store.connection() as connection:
            runs = _list_failed_runs(connection, period, by, site)
            if by == JOB_SITE:
                lost = self._list_lost_attempts(connection, period)
                runs += [run for run in lost if run.site == site and period.covers(run.started_us)]
        return runs

    def list_cells(self, by: str, site: str, period: Period) -> list[OutcomeCell]:
        """List the counts of all sites by place; the arguments are those of the failures."""
        with self._store.connection() as connection:
            place_of = _index_places(connection)
            counts: defaultdict[tuple[str, ...], Counter[FailureSign]] = defaultdict(Counter)
            for id_, sign, count in self._count_subjects(connection, by, site, period, place_of):
                counts[place_of[id_]][sign] += count
            for run in self._list_lost_attempts(connection, period):
                is_own = by == JOB_SITE and run.site == site
                if not is_own or period.covers(run.started_us):
                    counts[run.place][run.sign] += 1
        cells = [_build_cell(place, outcomes) for place, outcomes in counts.items()]
        return [cell for cell in cells if cell.good or cell.failures]

    def _count_subjects(
        self,
        connection: Connection,
        by: str,
        site: str,
        period: Period,
        place_of: Mapping[int, tuple[str, ...]],
    ) -> Iterator[_SubjectCount]:
        """Yield subject, signs and count: of the site within the period, of others by its days."""
        if period.is_whole:
            yield from self._count_days(connection, period)
            return
        column = _PLACE.index(by)
        for row in self._count_days(connection, period):
            if place_of[row[0]][column] != site:
                yield row
        yield from _count_outcomes(connection, *_list_conditions(period, by, site))

    def _count_days(self, connection: Connection, period: Period) -> Sequence[_SubjectCount]:
        if period.days not in self._by_day:
            of_days = measurement.c.day.between(*period.days)
            self._by_day[period.days] = [*_count_outcomes(connection, of_days)]
        return self._by_day[period.days]

    def _list_lost_attempts(self, connection: Connection, period: Period) -> Sequence[FailedRun]:
        if period.days not in self._lost:
            days = Period(Period.of_day(period.from_us).from_us, Period.of_day(period.to_us).to_us)
            recent = campaign.c.created_us.between(days.extend(SUBMISSION_DAYS).from_us, days.to_us)
            self._lost[period.days] = [*list_lost_attempts(connection, days, recent)]
        return self._lost[period.days]


def load_bad_days(
    store: ResultsReader, by: str, site: str, period: Period, tests: Collection[str]
) -> dict[int, Tally]:
    """Count the measurements of some tests at a site or storage by day (YYYYMMDD)."""
    table = measurement.c
    is_own = table.subject_id.in_(select_subjects(by, [site]))
    with store.connection() as connection:
        return _tally_tests(connection, table.day, tests, is_own, table.day.between(*period.days))


def load_host_counts(
    store: ResultsReader, by: str, site: str, period: Period, tests: Collection[str]
) -> dict[str, Tally]:
    """Count the measurements of some tests at a site or storage by host."""
    node = dimension_tables["node"].c
    conditions = _list_conditions(period, by, site)
    counts: defaultdict[str, Tally] = defaultdict(Tally)
    with store.connection() as connection:
        by_node = _tally_tests(connection, measurement.c.node_id, tests, *conditions)
        query = sa.select(node.id, node.host)
        for id_, host in load_by_ids(connection, query, node.id, by_node):
            counts[host or ""] += by_node[id_]
    return counts


def _tally_tests(
    connection: Connection,
    column: sa.ColumnElement[int],
    tests: Collection[str],
    *conditions: sa.ColumnElement[bool],
) -> dict[int, Tally]:
    """Count the measurements of some tests by a column."""
    groups = (column, measurement.c.subject_id)
    query = _select_tallies(*groups).where(*conditions)
    test_of = load_subjects(connection).index_column("test_name")
    tallies: defaultdict[int, Tally] = defaultdict(Tally)
    for value, id_, bad, count in connection.execute(query):
        if (test_of[id_] or "") in tests:
            tallies[int(value)] += Tally(int(bad), int(count))
    return tallies


def load_commit_counts(
    store: ResultsReader, test: str, campaign_ids: Iterable[str], period: Period
) -> list[CommitCounts]:
    """Count a test's measurements at the commits of some campaigns, and at the last ones before.

    Args:
        store: the database.
        test: name of the test.
        campaign_ids: campaigns of the failures.
        period: campaigns of other commits are searched from some days before it until its end.

    Returns:
        by commit, the newest first; none if the test had one commit only.
    """
    table = campaign.c
    searched = period.extend(SUBMISSION_DAYS)
    is_searched = table.created_us.between(searched.from_us, searched.to_us)
    query = (
        sa.select(table.id, table.commit_id, table.created_us)
        .where(is_searched, table.test_name == test)
        .order_by(table.created_us.desc(), table.id)
    )
    groups = (measurement.c.campaign_id, measurement.c.subject_id)
    counts: dict[str, CommitCounts] = {}
    with store.connection() as connection:
        rows = [tuple(row) for row in connection.execute(query)]
        for _, commit, created_us in rows:
            commit_counts = counts.setdefault(commit, CommitCounts(commit or "", created_us))
            commit_counts.submitted_us = created_us
        commit_of = {id_: commit for id_, commit, _ in rows}
        selection = _choose_campaigns(commit_of, set(campaign_ids))
        if not selection:
            return []
        site_of = load_subjects(connection).index_column("site")
        tallies = _select_tallies(*groups).where(groups[0].in_(selection))
        for row in connection.execute(tallies):
            by_site = counts[commit_of[row[0]]].by_site
            by_site[site_of[row[1]] or ""] += Tally(int(row[2]), int(row[3]))
    return [commit for commit in counts.values() if commit.by_site]


def _choose_campaigns(commit_of: Mapping[str, str], failing: Collection[str]) -> list[str]:
    """Choose failing campaigns, the newest first, and some beside; none if all have one commit."""
    failing_commits = {commit for id_, commit in commit_of.items() if id_ in failing}
    same = [id_ for id_, commit in commit_of.items() if commit in failing_commits]
    other = [id_ for id_, commit in commit_of.items() if commit not in failing_commits]
    bad = [id_ for id_ in same if id_ in failing]
    good = [id_ for id_ in same if id_ not in failing]
    if not (bad and other):
        return []
    return [*bad, *other[:MAX_OTHER_CAMPAIGNS], *good[:MAX_OTHER_CAMPAIGNS]]


def _index_places(connection: Connection) -> dict[int, tuple[str, ...]]:
    """Return the place of each subject."""
    return {
        id_: tuple(text or "" for text in place)
        for id_, *place in load_subjects(connection).select("id", *_PLACE)
    }


def _build_cell(place: Sequence[str], counts: Mapping[FailureSign, int]) -> OutcomeCell:
    site, storage, test, release, door = place
    good = sum(n for sign, n in counts.items() if sign.failure == Outcome.GOOD)
    failures = {s: n for s, n in counts.items() if s.failure != Outcome.GOOD and n > 0}
    return OutcomeCell(site, storage, test, release, door, good, failures)


def _count_outcomes(
    connection: Connection, *conditions: sa.ColumnElement[bool]
) -> Iterator[_SubjectCount]:
    """Count measurements by subject, outcome and kind of failure, without unsupported ones."""
    groups = (measurement.c.subject_id, outcome_column(), measurement.c.failure_kind)
    query = sa.select(*groups, sa.func.count()).where(*conditions, _is_assessed())
    for id_, label, kind, count in connection.execute(query.group_by(*groups)):
        yield id_, FailureSign(label, kind or "", ""), int(count)


def _list_failed_runs(
    connection: Connection, period: Period, by: str, site: str
) -> list[FailedRun]:
    """List the failures of a site or storage by attempt of a job, the most frequent first."""
    table = measurement.c
    attempts = (table.campaign_id, table.job_id, table.attempt)
    groups = (table.subject_id, *attempts, outcome_column(), table.failure_kind)
    first_columns = (sa.func.min(table.measurement_id), sa.func.min(table.started_us))
    query = (
        sa.select(*groups, *first_columns, sa.func.count())
        .where(*_list_conditions(period, by, site), _is_assessed(), is_bad())
        .group_by(*groups)
        .order_by(sa.func.count().desc(), first_columns[0])
        .limit(MAX_DETAILS)
    )
    rows = connection.execute(query).all()
    # A worker that was stopped does not know why; its batch system does.
    is_stopped = sa.and_(
        table.failure_class == "evicted",
        table.job_id == attempt.c.job_id,
        table.attempt == attempt.c.number,
    )
    # A long text is in no group on Oracle.
    text = sa.func.coalesce(attempt.c.message, table.failure_message)
    texts = sa.select(table.measurement_id, text).outerjoin(attempt, is_stopped)
    examples = [row[6] for row in rows[:MAX_MESSAGES]]
    messages = dict(map(tuple, connection.execute(texts.where(table.measurement_id.in_(examples)))))
    place_of = _index_places(connection)
    return [
        FailedRun(
            place_of[id_],
            campaign_id,
            job_id,
            number,
            FailureSign(label, kind or "", messages.get(row_id) or ""),
            started_us,
            count,
        )
        for id_, campaign_id, job_id, number, label, kind, row_id, started_us, count in rows
    ]


def list_lost_attempts(
    connection: Connection, period: Period, *conditions: sa.ColumnElement[bool]
) -> Iterator[FailedRun]:
    """List the failed attempts that ended in a period and returned no measurement."""
    returned = sa.exists().where(
        measurement.c.campaign_id == job.c.campaign_id,
        measurement.c.job_id == attempt.c.job_id,
        measurement.c.attempt == attempt.c.number,
    )
    place = (job.c.site, job.c.door, campaign.c.test_name)
    identity = (job.c.campaign_id, attempt.c.job_id, attempt.c.number)
    failure = (attempt.c.failure_class, attempt.c.message, attempt.c.ended_us)
    query = (
        sa.select(*place, *identity, *failure)
        .select_from(campaign.join(job).join(attempt))
        .where(attempt.c.ended_us.between(period.from_us, period.to_us), *conditions)
        .where(attempt.c.failure_class.is_not(None), sa.not_(returned))
    )
    for site, door, test, id_, job_id, number, label, message, end_us in connection.execute(query):
        where = (site or "", "", test or "", "", door or "")
        sign = FailureSign(label, "", message or "")
        yield FailedRun(where, id_, job_id, int(number), sign, int(end_us))


def ended_within(period: Period) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that a measurement ended in a period, after its first moment."""
    table = measurement.c
    days = table.day.between(*period.extend(MAX_EXECUTION_DAYS).days)
    return days, table.ended_us > period.from_us, table.ended_us <= period.to_us


def _list_conditions(period: Period, by: str, site: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of a site or storage in a period; whole days are those of the start."""
    is_own = measurement.c.subject_id.in_(select_subjects(by, [site]))
    if period.is_whole:
        return is_own, measurement.c.day.between(*period.days)
    return is_own, *ended_within(period)


def _select_tallies(*groups: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Build the query of groups with the numbers of their failed and of all measurements."""
    bad_count = sa.func.count(sa.case((is_bad(), measurement.c.subject_id)))
    return sa.select(*groups, bad_count, sa.func.count()).where(_is_assessed()).group_by(*groups)


def _is_assessed() -> sa.ColumnElement[bool]:
    is_supported = outcome_column().not_in(UNSUPPORTED_LABELS.values())
    return sa.and_(is_supported, sa.not_(has_flag(QUARANTINED)))


def _number_day(time_us: int) -> int:
    return epoch_day_to_number(max(0, time_us) // DAY_US) or 0
