"""Queries for the overview: active campaigns, days of sites, latest comparisons.

Only a limited number of measurements of one site and day is read, so that queries take milliseconds in
databases of any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.collectors.record.outcome import (
    NOT_SUPPORTED,
    UNSUPPORTED_LABELS,
    Outcome,
    sum_outcomes,
)
from treehammer.errors import NothingToDoError, suggest_word
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.column_types import text_equals
from treehammer.sql.core.measurement_sql import has_outcome, is_bad, is_superseded, load_subjects
from treehammer.sql.core.rows import CampaignRow, VerdictRow
from treehammer.sql.core.schema import (
    campaign,
    dimension_tables,
    job,
    measurement,
    rollup_day,
    verdict,
)
from treehammer.sql.engine.database_engine import CHUNK_ROWS, fetch_rows, split_ids
from treehammer.sql.read.campaign_counts import count_left_out
from treehammer.sql.read.reader import ResultsReader

_SITE = dimension_tables["subject"].c.site
#: Failing measurements, and jobs, of a site and day that are read.
MAX_BAD_MEASUREMENTS, MAX_MEASURED_JOBS = 200, 200
#: Comparisons that are listed at a time.
MAX_COMPARISONS = CHUNK_ROWS


@dataclass(frozen=True)
class SiteDay:
    """Measurements of one site on one day (UTC, YYYYMMDD) by outcome.

    Outcomes are ``good``, ``implausible``, unsupported features of :mod:`treehammer.collectors.record.outcome`,
    and classes of failures.
    """

    site: str
    day: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True)
class CampaignState:
    """A campaign with its jobs by state and its measurements by outcome, without superseded ones.

    ``last_run_us`` is the start of its last measurement; None before the first one.
    """

    campaign: CampaignRow
    jobs: Mapping[str, int]
    outcomes: Mapping[Outcome, int]
    last_run_us: int | None = None

    @property
    def recorded(self) -> int:
        """Number of recorded measurements."""
        return sum(self.outcomes.values())

    @property
    def share_recorded(self) -> float:
        """Recorded share of the planned measurements, at most 1."""
        return min(self.recorded / max(self.campaign.planned_measurements, 1), 1.0)


#: Columns of a subject by which measurements belong to a site.
JOB_SITE, STORAGE_SITE = "site", "storage_site"


def list_site_days(
    store: ResultsReader, first: int, last: int, by: str = JOB_SITE
) -> list[SiteDay]:
    """List sites and days from ``first`` to ``last`` (YYYYMMDD) with measurements, in order.

    Args:
        store: the database.
        first: the first day.
        last: the last day.
        by: :data:`JOB_SITE`, or :data:`STORAGE_SITE` for the sites whose storage was read.
    """
    of_site = dimension_tables["subject"].c[by]
    query = (
        sa.select(
            of_site, rollup_day.c.day, rollup_day.c.outcome, sa.func.sum(rollup_day.c.measurements)
        )
        .join(dimension_tables["subject"])
        .where(rollup_day.c.day.between(first, last))
        .group_by(of_site, rollup_day.c.day, rollup_day.c.outcome)
    )
    counts: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    with store.connection() as connection:
        for site, day, outcome, count in connection.execute(query):
            counts[site or "", day][outcome] = int(count)
    return [SiteDay(*key, counts[key]) for key in sorted(counts)]


def find_last_day(store: ResultsReader) -> int | None:
    """Find the last day (UTC, YYYYMMDD) with a measurement."""
    with store.connection() as connection:
        last_day = connection.scalar(sa.select(sa.func.max(rollup_day.c.day)))
    return None if last_day is None else int(last_day)


def list_sites(store: ResultsReader, by: str = JOB_SITE) -> list[str]:
    """List every site that has ever measured something, or whose storage was read, sorted."""
    with store.connection() as connection:
        rows = load_subjects(connection).select(by)
    return sorted({site or "" for (site,) in rows})


def build_unknown_site_error(store: ResultsReader, site: str) -> NothingToDoError:
    """Build the error for a site without measurements, with similar names."""
    near = suggest_word(site, list_sites(store))
    return NothingToDoError(
        f"there is no site {site[:100]!r} that has measured anything", hint=near
    )


@dataclass(frozen=True)
class FirstMeasurement:
    """The first day (UTC, YYYYMMDD) on which a site measured a release through a door."""

    site: str
    door: str
    root: str
    first_day: int


def list_first_measurements(store: ResultsReader) -> list[FirstMeasurement]:
    """Find the first day of each site, with one index lookup per subject."""
    subject = dimension_tables["subject"]
    first = sa.select(sa.func.min(rollup_day.c.day)).where(rollup_day.c.subject_id == subject.c.id)
    names = (subject.c.site, subject.c.door, subject.c.axis_root)
    by_subject = sa.select(*names, first.scalar_subquery().label("first_day")).subquery("one")
    by = (by_subject.c.site, by_subject.c.door, by_subject.c.axis_root)
    query = sa.select(*by, sa.func.min(by_subject.c.first_day)).group_by(*by)
    with store.connection() as connection:
        return [
            FirstMeasurement(site or "", door or "", root or "", int(day))
            for site, door, root, day in connection.execute(query)
            if day is not None
        ]


def list_subject_values(store: ResultsReader, name: str) -> list[str]:
    """List the distinct values of a column of measured subjects, sorted."""
    return list_values_by_column(store, [name])[name]


def list_values_by_column(
    store: ResultsReader, names: Iterable[str], limit: int | None = None
) -> dict[str, list[str]]:
    """List the distinct values of several columns of measured subjects, each sorted."""
    with store.connection() as connection:
        subjects = load_subjects(connection)
    return {name: [str(value) for value in subjects.list_values(name)[:limit]] for name in names}


def list_active_campaigns(
    store: ResultsReader, open_states: Collection[str]
) -> list[CampaignState]:
    """List the campaigns with jobs in any of these states, newest first."""
    query = sa.select(job.c.campaign_id).where(job.c.state.in_(open_states)).distinct()
    with store.connection() as connection:
        ids = list(connection.scalars(query))
    return fetch_campaign_states(store, ids)


def list_campaigns_since(store: ResultsReader, us: int) -> list[CampaignRow]:
    """List the campaigns submitted since a time, newest first."""
    query = sa.select(campaign).where(campaign.c.created_us >= us)
    with store.connection() as connection:
        return fetch_rows(
            connection, CampaignRow, query.order_by(campaign.c.created_us.desc(), campaign.c.id)
        )


def fetch_campaign_states(store: ResultsReader, ids: Sequence[str]) -> list[CampaignState]:
    """Fetch the states of these campaigns, newest first."""
    rows: list[CampaignRow] = []
    jobs: dict[str, Counter[str]] = defaultdict(Counter)
    outcomes: dict[str, Counter[Outcome]] = defaultdict(Counter)
    last_us: dict[str, int] = {}
    count = sa.func.count()
    with store.connection() as connection:
        for chunk in split_ids(ids):
            rows += fetch_rows(
                connection, CampaignRow, sa.select(campaign).where(campaign.c.id.in_(chunk))
            )
            by = (job.c.campaign_id, job.c.state)
            states = sa.select(*by, count).where(job.c.campaign_id.in_(chunk)).group_by(*by)
            for id_, state, number in connection.execute(states):
                jobs[id_][state] = number
            last_us |= _count_outcomes(connection, chunk, outcomes)
    rows.sort(key=lambda row: (-row.created_us, row.id))
    return [CampaignState(row, jobs[row.id], outcomes[row.id], last_us.get(row.id)) for row in rows]


def _count_outcomes(
    connection: sa.Connection, campaign_ids: Sequence[str], outcomes: dict[str, Counter[Outcome]]
) -> dict[str, int]:
    """Add the measurements of campaigns by outcome; return the start of the last one of each.

    Only unsupported ones are read one by one.
    """
    # Sums follow the index; groups by outcome would be sorted first, in three times the time.
    campaign_id, count = measurement.c.campaign_id, sa.func.count()
    failed = sa.func.count(measurement.c.failure_class)
    is_good = sa.and_(measurement.c.failure_class.is_(None), measurement.c.plausible == sa.true())
    good = sa.func.count(sa.case((is_good, campaign_id)))
    of_campaigns = sa.select(campaign_id, count).where(campaign_id.in_(campaign_ids))
    last_us: dict[str, int] = {}
    started = sa.func.max(measurement.c.started_us)
    for id_, number, failures, successes, last in connection.execute(
        of_campaigns.add_columns(failed, good, started).group_by(campaign_id)
    ):
        last_us[id_] = int(last)
        counts = {
            Outcome.GOOD: successes,
            Outcome.FAILED: failures,
            Outcome.IMPLAUSIBLE: number - failures - successes,
        }
        outcomes[id_].update(
            {outcome: measurements for outcome, measurements in counts.items() if measurements}
        )
    unsupported = of_campaigns.where(
        measurement.c.failure_class.in_(UNSUPPORTED_LABELS),
        measurement.c.failure_kind == NOT_SUPPORTED,
    )
    for id_, number in connection.execute(unsupported.group_by(campaign_id)):
        outcomes[id_][Outcome.FAILED] -= number
        outcomes[id_][Outcome.NOT_SUPPORTED] += number
    for id_, left_out in count_left_out(connection, campaign_ids).items():
        outcomes[id_] -= Counter(sum_outcomes(left_out))
    return last_us


@dataclass(frozen=True)
class VerdictCount:
    """Number of equal verdicts on one metric of one variant within a scope.

    ``largest`` is the effect among them that is largest without its sign; None without any.
    """

    metric: str
    label: str
    scope: str
    verdict: str
    count: int
    largest: float | None


@dataclass(frozen=True)
class ComparisonSummary:
    """A stored comparison in short.

    Attributes:
        first_verdict: its first line, with the compared values and the time.
        counts: of all its verdicts, in order of their first lines.
    """

    first_verdict: VerdictRow
    counts: Sequence[VerdictCount]

    @property
    def verdict_counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Metric -> scope -> verdict -> how many lines, the most frequent verdict first."""
        totals: dict[str, dict[str, Counter[str]]] = {}
        for line in self.counts:
            scopes = totals.setdefault(line.metric, {})
            scopes.setdefault(line.scope, Counter())[line.verdict] += line.count
        return {
            metric: {scope: dict(counted.most_common()) for scope, counted in scopes.items()}
            for metric, scopes in totals.items()
        }


def list_latest_comparisons(
    store: ResultsReader,
    count: int,
    first: int = 0,
    *,
    since_us: int | None = None,
    axis: str = "",
) -> list[ComparisonSummary]:
    """List ``count`` comparisons from number ``first`` on, the newest first.

    With ``since_us`` (microseconds since 1970 UTC) only those made since then, with ``axis`` only
    those of its values.
    """
    newest = verdict.c.created_us.desc(), verdict.c.comparison_id.desc()
    query = sa.select(verdict).where(verdict.c.line == 0).order_by(*newest)
    if since_us is not None:
        query = query.where(verdict.c.created_us >= since_us)
    if axis:
        query = query.where(verdict.c.axis == axis)
    with store.connection() as connection:
        rows = fetch_rows(
            connection, VerdictRow, query.offset(first).limit(min(count, MAX_COMPARISONS))
        )
        return summarize_comparisons(connection, rows)


def summarize_comparisons(
    connection: Connection, rows: Sequence[VerdictRow]
) -> list[ComparisonSummary]:
    """Summarize comparisons, of which each row is the first."""
    counts = _remember_results(connection, rows, "counts", _count_verdicts)
    return [ComparisonSummary(row, counts[row.comparison_id]) for row in rows]


_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
#: Engine -> name of a query and first row of a comparison -> result. Clients that repeat a comparison
#: replace all of its rows, the time of the first one included: if the first rows are equal, so
#: are the others.
_REMEMBERED: WeakKeyDictionary[Engine, dict[tuple[str, VerdictRow], Any]] = WeakKeyDictionary()
#: Results that are kept; then the memory starts again.
_MAX_REMEMBERED = 4000


def _remember_results(
    connection: Connection,
    rows: Sequence[VerdictRow],
    name: str,
    query: Callable[[Connection, Sequence[str]], Mapping[str, _Result]],
) -> dict[str, _Result]:
    """Return the result of a query for each of some comparisons, from memory where it is known.

    Args:
        connection: of a reader.
        rows: the first row of each comparison.
        name: of the query.
        query: returns results by comparison, from the many rows of these.
    """
    remembered = _REMEMBERED.setdefault(connection.engine, {})
    if len(remembered) > _MAX_REMEMBERED:
        remembered.clear()
    results = {
        row.comparison_id: remembered[name, row] for row in rows if (name, row) in remembered
    }
    missing = {row.comparison_id: row for row in rows if row.comparison_id not in results}
    if missing:
        fetched = query(connection, [*missing])
        remembered.update({(name, row): fetched[id_] for id_, row in missing.items()})
        results.update(fetched)
    return results


def _count_verdicts(connection: Connection, ids: Sequence[str]) -> dict[str, list[VerdictCount]]:
    """Count the verdicts of each comparison by metric, variant, scope and verdict, in order."""
    table = verdict.c
    by = (table.comparison_id, table.metric, table.label, table.scope, table.verdict)
    counts = sa.select(
        *by,
        sa.func.count(),
        sa.func.min(table.effect),
        sa.func.max(table.effect),
        sa.func.min(table.line).label("first_line"),
    )
    query = counts.where(table.comparison_id.in_(ids)).group_by(*by)
    counts_by_id: dict[str, list[VerdictCount]] = {id_: [] for id_ in ids}
    for row in sorted(connection.execute(query), key=lambda row: int(row.first_line)):
        id_, metric, label, scope, judged, number, *ends, _ = row
        largest = max((float(end) for end in ends if end is not None), key=abs, default=None)
        counts_by_id[id_].append(
            VerdictCount(metric, label or "", scope, judged, int(number), largest)
        )
    return counts_by_id


def count_comparisons(store: ResultsReader) -> int:
    """Count the stored comparisons."""
    query = sa.select(sa.func.count()).select_from(verdict).where(verdict.c.line == 0)
    with store.connection() as connection:
        return connection.scalar(query) or 0


def find_largest_effects(
    store: ResultsReader, groups: Mapping[str, Collection[VerdictCount]]
) -> dict[tuple[str, str], VerdictRow]:
    """Find the line with the largest effect of each comparison and metric.

    Args:
        store: the database.
        groups: comparison -> the verdicts among which to search.
    """
    largest: dict[tuple[str, str], tuple[float, VerdictCount]] = {}
    for id_, counts in groups.items():
        for count in counts:
            if count.largest is not None:
                _keep_largest(largest, (id_, count.metric), count.largest, count)
    table = verdict.c
    lines = [
        sa.and_(
            table.comparison_id == id_,
            table.metric == metric,
            text_equals(table.label, count.label),
            table.scope == count.scope,
            table.verdict == count.verdict,
        )
        for (id_, metric), (_, count) in largest.items()
    ]
    query = sa.select(verdict).where(sa.or_(sa.false(), *lines)).order_by(table.line)
    rows: dict[tuple[str, str], tuple[float, VerdictRow]] = {}
    with store.connection() as connection:
        for row in fetch_rows(connection, VerdictRow, query):
            if row.effect is not None:
                _keep_largest(rows, (row.comparison_id, row.metric), row.effect, row)
    return {key: row for key, (_, row) in rows.items()}


def _keep_largest(
    largest: dict[tuple[str, str], tuple[float, _Item]],
    key: tuple[str, str],
    effect: float,
    item: _Item,
) -> None:
    """Keep an item under a key if its effect is larger than that of the present one."""
    if key not in largest or abs(effect) > abs(largest[key][0]):
        largest[key] = effect, item


@dataclass(frozen=True)
class BadMeasurement:
    """One measurement that failed, or cannot be true (then ``failure_class`` is '')."""

    campaign_id: str
    job_id: str
    test_name: str
    variant: str
    variant_label: str
    axis_root: str
    host: str
    failure_class: str
    failure_kind: str
    failure_phase: str
    failure_message: str
    implausible_reasons: str


def list_bad_measurements(store: ResultsReader, site: str, day: int) -> list[BadMeasurement]:
    """List up to :data:`MAX_BAD_MEASUREMENTS` measurements of a site and day that are not good.

    Those that a later attempt made up for are left out.
    """
    names = tuple(field.name for field in fields(BadMeasurement))
    query = measurement_sql.select_columns(names).where(
        measurement.c.day == day, _is_at_site(site), is_bad(), sa.not_(is_superseded())
    )
    with store.connection() as connection:
        rows = connection.execute(query.limit(MAX_BAD_MEASUREMENTS))
        return [BadMeasurement(*(value or "" for value in row)) for row in rows]


@dataclass(frozen=True)
class MeasuredJob:
    """A job that measured at a site on a day, with the numbers of all and of good measurements."""

    campaign_id: str
    campaign_name: str
    job_id: str
    measurements: int
    good: int


def list_measured_jobs(store: ResultsReader, site: str, day: int) -> list[MeasuredJob]:
    """List up to :data:`MAX_MEASURED_JOBS` jobs that measured at a site on a day (YYYYMMDD)."""
    sql_one, sql_zero = sa.literal_column("1", sa.BigInteger), sa.literal_column("0", sa.BigInteger)
    by = (measurement.c.campaign_id, measurement.c.job_id)
    counts = (
        sa.func.count(),
        sa.func.sum(sa.case((has_outcome(Outcome.GOOD), sql_one), else_=sql_zero)),
    )
    query = sa.select(*by, *counts).where(measurement.c.day == day, _is_at_site(site)).group_by(*by)
    with store.connection() as connection:
        rows = connection.execute(query.order_by(*by).limit(MAX_MEASURED_JOBS)).all()
    names = store.campaign_names(row[0] for row in rows)
    return [
        MeasuredJob(campaign_id, names.get(campaign_id, ""), job_id, int(number), int(good))
        for campaign_id, job_id, number, good in rows
    ]


def _is_at_site(site: str) -> sa.ColumnElement[bool]:
    """Return the condition that a measurement ran at a site."""
    return measurement_sql.measurements_where("site", text_equals(_SITE, site))


@dataclass(frozen=True)
class SiteTotal:
    """All measurements of a site with one outcome, and the last day (YYYYMMDD) of one."""

    site: str
    outcome: str
    measurements: int
    last_day: int


def count_site_outcomes(store: ResultsReader) -> list[SiteTotal]:
    """Count all measurements by site and outcome, sorted."""
    table = rollup_day.c
    # A column that no index is sorted by: SQLite would read the table in an index's order.
    subject = (table.subject_id + sa.literal_column("0")).label("subject_id")
    sums = (
        sa.func.sum(table.measurements).label("counted"),
        sa.func.max(table.day).label("last_day"),
    )
    by_subject = (
        sa.select(subject, table.outcome, *sums).group_by(subject, table.outcome).subquery("one")
    )
    joined = by_subject.join(
        dimension_tables["subject"], by_subject.c.subject_id == dimension_tables["subject"].c.id
    )
    added = sa.func.sum(by_subject.c.counted), sa.func.max(by_subject.c.last_day)
    query = sa.select(_SITE, by_subject.c.outcome, *added).select_from(joined)
    query = query.group_by(_SITE, by_subject.c.outcome)
    with store.connection() as connection:
        rows = connection.execute(query)
        totals = [
            SiteTotal(site or "", outcome, int(n), int(day)) for site, outcome, n, day in rows
        ]
    return sorted(totals, key=lambda total: (total.site, total.outcome))


def count_jobs_by_state(store: ResultsReader, open_states: Collection[str]) -> dict[str, int]:
    """Count jobs by state; states without jobs are absent."""
    query = sa.select(job.c.state, sa.func.count()).where(job.c.state.in_(open_states))
    with store.connection() as connection:
        return {row[0]: row[1] for row in connection.execute(query.group_by(job.c.state))}
