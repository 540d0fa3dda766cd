"""Counts of good and failed measurements by site, storage, test, release, door and host.

Counts of whole days are read from an index alone; single measurements are read of the failures at one
site or storage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.failures import NOT_SUPPORTED
from treehammer.collectors.record.outcome import UNSUPPORTED_LABELS, Outcome
from treehammer.sql.core.outcomes import is_bad
from treehammer.sql.core.schema import attempt, campaign, dimension_tables, job, measurement
from treehammer.sql.engine.row_mapping import split_ids
from treehammer.sql.read.overview_queries import JOB_SITE
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.subject_table import SubjectTable, load_subjects

_SUBJECT = dimension_tables["subject"].c
#: Days before a period in which campaigns with jobs in it were submitted.
SUBMISSION_DAYS = 14
#: Failures of a site that are read one by one.
MAX_DETAILS = 20_000
#: Messages that are read of these.
MAX_MESSAGES = 50


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

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.bad - other.bad, self.total - other.total)

    def __str__(self) -> str:
        return f"{self.bad:,} of {self.total:,}"

    def per_job(self, failures: float) -> Tally:
        """Return independent numbers, where a failing job has so many failures."""
        bad = round(self.bad / failures)
        return Tally(bad, max(bad, round(self.total / failures)))


@dataclass(frozen=True)
class OutcomeCell:
    """Measurements of one site, storage site, test, release and door: good ones, and failures by class.

    A job that ended without a measurement counts as one failure; its storage and release are ''.
    """

    site: str
    storage_site: str
    test: str
    release: str
    door: str
    good: int
    failures: Mapping[str, int]

    @property
    def bad(self) -> int:
        """Number of failures."""
        return sum(self.failures.values())


@dataclass(frozen=True)
class FailedRun:
    """Failures of one class in an attempt of a job.

    Attributes:
        place: site, storage site, test, release and door.
        campaign_id: its campaign.
        job_id: the job.
        attempt: number of the attempt.
        failure: label of the outcome.
        message: one of the messages; '' if it was not read.
        started_us: start of the first one; end of an attempt without a measurement.
        count: number of failures.
    """

    place: tuple[str, ...]
    campaign_id: str
    job_id: str
    attempt: int
    failure: str
    message: str
    started_us: int
    count: int = 1

    @property
    def site(self) -> str:
        """Site of the job."""
        return self.place[0]

    @property
    def test(self) -> str:
        """Name of the test."""
        return self.place[2]


#: Site, storage site, test, release and door of a subject or a job.
_PLACE = ("site", "storage_site", "test_name", "axis_root", "door")
_Counts = dict[tuple[str, ...], Counter[str]]


class PeriodCounts:
    """Counts of a period: exact at one site or storage, of whole days elsewhere.

    Counts of days are read once, so that many sites can be asked for.

    Args:
        store: the database.
    """

    def __init__(self, store: ResultsReader) -> None:
        self._store = store
        self._by_day: dict[tuple[int, int], Sequence[tuple[int, str, int]]] = {}
        self._lost: dict[tuple[int, int], Sequence[FailedRun]] = {}

    def list_failed_runs(self, by: str, site: str, period: Period) -> list[FailedRun]:
        """List the failures of a site, or of the storage of a site, by attempt of a job.

        Args:
            by: :data:`.overview_queries.JOB_SITE` or :data:`.overview_queries.STORAGE_SITE`.
            site: name of the site.
            period: the time in which they ended; of whole days, those that started.
        """
        with self._store.connection() as connection:
            place_of = _index_places(load_subjects(connection))
            runs = _list_failed_runs(connection, period, by, site, place_of)
            if by == JOB_SITE:
                lost = self._list_lost_attempts(connection, period)
                runs += [run for run in lost if run.site == site and period.covers(run.started_us)]
        return runs

    def list_cells(self, by: str, site: str, period: Period) -> list[OutcomeCell]:
        """List the counts of all sites by place; the arguments are those of the failures."""
        with self._store.connection() as connection:
            place_of = _index_places(load_subjects(connection))
            counts: _Counts = defaultdict(Counter)
            column = _PLACE.index(by)
            for id_, outcome, count in self._count_days(connection, period):
                if period.is_whole or place_of[id_][column] != site:
                    counts[place_of[id_]][outcome] += count
            if not period.is_whole:
                for id_, outcome, count in _count_exactly(connection, period, by, site):
                    counts[place_of[id_]][outcome] += count
            for run in self._list_lost_attempts(connection, period):
                is_own = by == JOB_SITE and run.site == site
                if not is_own or period.covers(run.started_us):
                    counts[run.place][run.failure] += 1
        cells = [_build_cell(place, outcomes) for place, outcomes in counts.items()]
        return [cell for cell in cells if cell.good or cell.failures]

    def _count_days(self, connection: Connection, period: Period) -> Sequence[tuple[int, str, int]]:
        if period.days not in self._by_day:
            self._by_day[period.days] = [*_count_days(connection, period)]
        return self._by_day[period.days]

    def _list_lost_attempts(self, connection: Connection, period: Period) -> Sequence[FailedRun]:
        if period.days not in self._lost:
            self._lost[period.days] = [*_list_lost_attempts(connection, period)]
        return self._lost[period.days]


def fetch_bad_days(
    store: ResultsReader, by: str, site: str, period: Period, tests: Collection[str]
) -> dict[int, tuple[int, int]]:
    """Count the good and the bad measurements of some tests at a site or storage by day (YYYYMMDD)."""
    table = measurement.c
    groups = (table.day, table.subject_id, table.plausible, table.failure_class)
    query = (
        sa.select(*groups, sa.func.count())
        .where(table.subject_id.in_(_select_own(by, site)), table.day.between(*period.days))
        .group_by(*groups)
    )
    days: dict[int, tuple[int, int]] = {}
    with store.connection() as connection:
        test_of = load_subjects(connection).index_column("test_name")
        for day, id_, plausible, failure_class, count in connection.execute(query):
            if (test_of[id_] or "") in tests:
                good, bad = days.get(int(day), (0, 0))
                is_good = plausible and not failure_class
                days[int(day)] = (good + count, bad) if is_good else (good, bad + count)
    return days


def fetch_host_counts(
    store: ResultsReader, by: str, site: str, period: Period, tests: Collection[str]
) -> dict[str, Tally]:
    """Count the measurements of some tests at a site or storage by host."""
    table, node = measurement.c, dimension_tables["node"].c
    groups = (table.subject_id, table.node_id)
    bad = sa.func.count(sa.case((is_bad(), table.subject_id)))
    query = (
        sa.select(*groups, bad, sa.func.count())
        .where(*_is_within(period, by, site), _is_supported())
        .group_by(*groups)
    )
    with store.connection() as connection:
        test_of = load_subjects(connection).index_column("test_name")
        rows = [row for row in connection.execute(query) if (test_of[row[0]] or "") in tests]
        hosts: dict[int, str] = {}
        for ids in split_ids({row[1] for row in rows}):
            named = connection.execute(sa.select(node.id, node.host).where(node.id.in_(ids)))
            hosts.update((id_, host or "") for id_, host in named)
    counts: dict[str, Tally] = {}
    for _, id_, failed, count in rows:
        before = counts.get(hosts[id_], Tally())
        counts[hosts[id_]] = Tally(before.bad + int(failed), before.total + count)
    return counts


def _index_places(subjects: SubjectTable) -> dict[int, tuple[str, ...]]:
    """Return the place of each subject; a storage site that was not recorded is the job's site."""
    places = {}
    for id_, site, storage, *others in subjects.select("id", *_PLACE):
        place = (site or "", storage or site or "", *(text or "" for text in others))
        places[id_] = place
    return places


def _build_cell(place: Sequence[str], outcomes: Mapping[str, int]) -> OutcomeCell:
    site, storage, test, release, door = place
    failures = {name: n for name, n in outcomes.items() if name != Outcome.GOOD.value and n > 0}
    good = outcomes.get(Outcome.GOOD.value, 0)
    return OutcomeCell(site, storage, test, release, door, good, failures)


def _count_days(connection: Connection, period: Period) -> Iterator[tuple[int, str, int]]:
    """Count the measurements of whole days by subject and outcome; unsupported ones as negative."""
    table = measurement.c
    groups = (table.subject_id, table.plausible, table.failure_class)
    of_days = table.day.between(*period.days)
    query = sa.select(*groups, sa.func.count()).where(of_days).group_by(*groups)
    for id_, plausible, failure_class, count in connection.execute(query):
        yield id_, _label(plausible, failure_class), count
    # The kind of a failure is in no index; only failures of these classes are looked up.
    few = sa.select(table.subject_id, table.failure_class, sa.func.count()).where(
        of_days, table.failure_class.in_(UNSUPPORTED_LABELS), table.failure_kind == NOT_SUPPORTED
    )
    query = few.group_by(table.subject_id, table.failure_class)
    for id_, failure_class, count in connection.execute(query):
        yield id_, failure_class, -count


def _count_exactly(
    connection: Connection, period: Period, by: str, site: str
) -> Iterator[tuple[int, str, int]]:
    """Count the supported measurements of a site or storage that ended in a period."""
    table = measurement.c
    groups = (table.subject_id, table.plausible, table.failure_class)
    query = (
        sa.select(*groups, sa.func.count())
        .where(*_is_within(period, by, site), _is_supported())
        .group_by(*groups)
    )
    for id_, plausible, failure_class, count in connection.execute(query):
        yield id_, _label(plausible, failure_class), count


def _list_failed_runs(
    connection: Connection,
    period: Period,
    by: str,
    site: str,
    place_of: Mapping[int, tuple[str, ...]],
) -> list[FailedRun]:
    """List the failures of a site or storage by attempt of a job, the most frequent first."""
    table = measurement.c
    groups = (table.subject_id, table.campaign_id, table.job_id, table.attempt)
    outcome = (table.plausible, table.failure_class)
    query = (
        sa.select(
            *groups,
            *outcome,
            sa.func.min(table.measurement_id),
            sa.func.min(table.started_us),
            sa.func.count(),
        )
        .where(*_is_within(period, by, site), _is_supported(), is_bad())
        .group_by(*groups, *outcome)
        .limit(MAX_DETAILS)
    )
    rows = sorted(connection.execute(query).all(), key=lambda row: (-row[8], row[6]))
    # A long text is in no group on Oracle.
    chosen = [row[6] for row in rows[:MAX_MESSAGES]]
    texts = sa.select(table.measurement_id, table.failure_message)
    messages: dict[str, str] = {}
    for ids in split_ids(chosen):
        found = connection.execute(texts.where(table.measurement_id.in_(ids)))
        messages.update((id_, text or "") for id_, text in found)
    return [
        FailedRun(
            place_of[subject_id],
            campaign_id,
            job_id,
            int(number),
            _label(plausible, failure_class),
            messages.get(example, ""),
            int(started_us),
            int(count),
        )
        for (
            subject_id,
            campaign_id,
            job_id,
            number,
            plausible,
            failure_class,
            example,
            started_us,
            count,
        ) in rows
    ]


def _list_lost_attempts(connection: Connection, period: Period) -> Iterator[FailedRun]:
    """List the failed attempts that returned no measurement, of recently submitted campaigns."""
    returned = sa.exists().where(
        measurement.c.campaign_id == job.c.campaign_id,
        measurement.c.job_id == attempt.c.job_id,
        measurement.c.attempt == attempt.c.number,
    )
    first_us, last_us = period.from_us // DAY_US * DAY_US, (period.to_us // DAY_US + 1) * DAY_US
    query = (
        sa.select(
            job.c.site,
            job.c.door,
            campaign.c.test_name,
            campaign.c.id,
            attempt.c.job_id,
            attempt.c.number,
            attempt.c.failure_class,
            attempt.c.message,
            attempt.c.ended_us,
        )
        .select_from(campaign.join(job).join(attempt))
        .where(
            campaign.c.created_us.between(period.extend(SUBMISSION_DAYS).from_us, last_us),
            attempt.c.ended_us >= first_us,
            attempt.c.ended_us < last_us,
            attempt.c.failure_class.is_not(None),
            sa.not_(returned),
        )
    )
    for site, door, test, *identity, failure, message, ended_us in connection.execute(query):
        place = (site or "", "", test or "", "", door or "")
        campaign_id, job_id, number = identity
        yield FailedRun(
            place, campaign_id, job_id, int(number), failure, message or "", int(ended_us)
        )


def _is_within(period: Period, by: str, site: str) -> tuple[sa.ColumnElement[bool], ...]:
    table = measurement.c
    # Days are those of the start.
    conditions = (
        table.subject_id.in_(_select_own(by, site)),
        table.day.between(*period.extend(0 if period.is_whole else 1).days),
    )
    if period.is_whole:
        return conditions
    return (*conditions, table.ended_us > period.from_us, table.ended_us <= period.to_us)


def _select_own(by: str, site: str) -> sa.Select[Any]:
    """Select the subjects of a site, or of a storage."""
    column: sa.ColumnElement[str] = _SUBJECT[by]
    return sa.select(_SUBJECT.id).where(column == site if site else column.is_(None))


def _is_supported() -> sa.ColumnElement[bool]:
    table = measurement.c
    return sa.or_(
        table.failure_class.is_(None),
        table.failure_kind.is_(None),
        table.failure_kind != NOT_SUPPORTED,
        table.failure_class.not_in(UNSUPPORTED_LABELS),
    )


def _label(plausible: Any, failure_class: str | None) -> str:
    completed = Outcome.GOOD if plausible else Outcome.IMPLAUSIBLE
    return failure_class or completed.value


def _number_day(time_us: int) -> int:
    return epoch_day_to_number(max(0, time_us) // DAY_US) or 0
