"""Queries for the overview: active campaigns, days of sites, failed measurements.

Only a limited number of measurements of one site and day is read, so that queries take milliseconds in
databases of any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import sqlalchemy as sa

from treehammer.collectors.job_spec import OPEN_JOB_STATES
from treehammer.collectors.record.outcome import (
    NOT_SUPPORTED,
    UNSUPPORTED_LABELS,
    Outcome,
    sum_outcomes,
)
from treehammer.errors import NothingToDoError, suggest_word
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_sql import (
    has_outcome,
    is_bad,
    is_superseded,
    load_subjects,
    select_subjects,
)
from treehammer.sql.core.rows import LOCAL_OWNER, CampaignRow
from treehammer.sql.core.schema import (
    campaign,
    campaign_owner,
    dimension_tables,
    job,
    measurement,
    rollup_day,
)
from treehammer.sql.engine.database_engine import (
    load_by_ids,
    load_rows,
    load_rows_by_ids,
    split_ids,
)
from treehammer.sql.read.campaign_counts import count_left_out, is_over
from treehammer.sql.read.reader import ResultsReader

_SITE = dimension_tables["subject"].c.site
#: Failing measurements, and jobs, of a site and day that are read.
MAX_BAD_MEASUREMENTS, MAX_MEASURED_JOBS = 200, 200


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

    Attributes:
        last_run_us: start of its last measurement; None before the first one.
        owner: group of the key that sent it; '' for one of this installation.
    """

    campaign: CampaignRow
    jobs: Mapping[str, int]
    outcomes: Mapping[Outcome, int]
    last_run_us: int | None = None
    owner: str = ""

    @property
    def submitter(self) -> str:
        """Who submitted it: the user of its plan, else the group of the key that sent it."""
        return self.campaign.plan.submitter or self.owner

    @property
    def recorded(self) -> int:
        """Number of recorded measurements."""
        return sum(self.outcomes.values())

    @property
    def is_over(self) -> bool:
        """Whether no further measurements are expected."""
        return is_over(self.jobs, self.recorded, self.campaign.planned_measurements)


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


def list_values_by_column(store: ResultsReader, names: Iterable[str]) -> dict[str, list[str]]:
    """List the distinct values of several columns of measured subjects, each sorted."""
    with store.connection() as connection:
        subjects = load_subjects(connection)
    return {name: [str(value) for value in subjects.list_values(name)] for name in names}


def list_dimension_values(store: ResultsReader, dimension: str, name: str) -> list[str]:
    """List the distinct values of a column that measurements share, such as their server's version."""
    values = dimension_tables[dimension].c[name]
    query = sa.select(values).where(values.is_not(None)).distinct()
    with store.connection() as connection:
        return [str(value) for value in connection.scalars(query)]


def load_cpu_models(store: ResultsReader, hosts: Collection[str]) -> dict[str, str]:
    """Load the CPU model of hosts; unknown ones are left out."""
    node = dimension_tables["node"].c
    models: dict[str, str] = {}
    with store.connection() as connection:
        for chunk in split_ids(sorted(hosts)):
            query = sa.select(node.host, node.cpu_model).where(node.host.in_(chunk)).distinct()
            models |= {host: model for host, model in connection.execute(query) if model}
    return models


def list_active_campaigns(store: ResultsReader) -> list[CampaignState]:
    """List the running campaigns, newest first: with open jobs, and not over."""
    query = sa.select(job.c.campaign_id).where(job.c.state.in_(OPEN_JOB_STATES)).distinct()
    with store.connection() as connection:
        ids = list(connection.scalars(query))
    return [state for state in load_campaign_states(store, ids) if not state.is_over]


def list_incomplete_campaigns(store: ResultsReader, examined: Collection[str]) -> list[CampaignRow]:
    """List campaigns with open jobs, and those of ``examined`` that lack measurements, newest first."""
    open_ids = sa.select(job.c.campaign_id).where(job.c.state.in_(OPEN_JOB_STATES)).distinct()
    incomplete = (
        sa.select(campaign.c.id)
        .outerjoin(measurement, measurement.c.campaign_id == campaign.c.id)
        .group_by(campaign.c.id, campaign.c.planned_measurements)
        .having(sa.func.count(measurement.c.campaign_id) < campaign.c.planned_measurements)
    )
    with store.connection() as connection:
        ids = {*connection.scalars(open_ids)}
        rows_of_examined = load_by_ids(connection, incomplete, campaign.c.id, sorted(examined))
        ids.update(id_ for (id_,) in rows_of_examined)
        rows = load_rows_by_ids(
            connection, CampaignRow, sa.select(campaign), campaign.c.id, sorted(ids)
        )
    return sorted(rows, key=lambda row: (-row.created_us, row.id))


def list_campaigns_since(store: ResultsReader, us: int) -> list[CampaignRow]:
    """List the campaigns submitted since a time, newest first."""
    query = sa.select(campaign).where(campaign.c.created_us >= us)
    with store.connection() as connection:
        return load_rows(
            connection, CampaignRow, query.order_by(campaign.c.created_us.desc(), campaign.c.id)
        )


def load_campaign_states(store: ResultsReader, ids: Sequence[str]) -> list[CampaignState]:
    """Load the states of these campaigns, newest first."""
    jobs: dict[str, Counter[str]] = defaultdict(Counter)
    outcomes: dict[str, Counter[Outcome]] = defaultdict(Counter)
    last_us: dict[str, int] = {}
    columns = campaign_owner.c.campaign_id, campaign_owner.c.owner
    of_others = sa.select(*columns).where(campaign_owner.c.owner != LOCAL_OWNER)
    by = (job.c.campaign_id, job.c.state)
    states = sa.select(*by, sa.func.count()).group_by(*by)
    with store.connection() as connection:
        rows = load_rows_by_ids(connection, CampaignRow, sa.select(campaign), campaign.c.id, ids)
        owners = dict(map(tuple, load_by_ids(connection, of_others, columns[0], ids)))
        for id_, state, number in load_by_ids(connection, states, job.c.campaign_id, ids):
            jobs[id_][state] = number
        for chunk in split_ids(ids):
            last_us |= _count_outcomes(connection, chunk, outcomes)
    rows.sort(key=lambda row: (-row.created_us, row.id))
    return [
        CampaignState(
            row, jobs[row.id], outcomes[row.id], last_us.get(row.id), owners.get(row.id, "")
        )
        for row in rows
    ]


def _count_outcomes(
    connection: sa.Connection, campaign_ids: Sequence[str], outcomes: dict[str, Counter[Outcome]]
) -> dict[str, int]:
    """Add the measurements of campaigns by outcome; return the start of the last one of each.

    Only unsupported ones are read one by one.
    """
    # Sums follow the index; groups by outcome would be sorted first, in three times the time.
    campaign_id, count = measurement.c.campaign_id, sa.func.count()
    failed = sa.func.count(measurement.c.failure_class)
    is_good = has_outcome(Outcome.GOOD)
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
        measurement.c.day == day,
        measurement.c.subject_id.in_(select_subjects("site", [site])),
        is_bad(),
        sa.not_(is_superseded()),
    )
    with store.connection() as connection:
        rows = connection.execute(query.limit(MAX_BAD_MEASUREMENTS))
        texts = sorted([value or "" for value in row] for row in rows)
    return [BadMeasurement(*values) for values in texts]


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
    by = (measurement.c.campaign_id, measurement.c.job_id)
    counts = (
        sa.func.count(),
        sa.func.count(sa.case((has_outcome(Outcome.GOOD), measurement.c.job_id))),
    )
    is_at_site = measurement.c.subject_id.in_(select_subjects("site", [site]))
    query = sa.select(*by, *counts).where(measurement.c.day == day, is_at_site).group_by(*by)
    with store.connection() as connection:
        rows = connection.execute(query.order_by(*by).limit(MAX_MEASURED_JOBS)).all()
    names = store.campaign_names(row[0] for row in rows)
    return [
        MeasuredJob(campaign_id, names.get(campaign_id, ""), job_id, int(number), int(good))
        for campaign_id, job_id, number, good in rows
    ]


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
    query = (
        sa.select(_SITE, table.outcome, sa.func.sum(table.measurements), sa.func.max(table.day))
        .join_from(rollup_day, dimension_tables["subject"])
        .group_by(_SITE, table.outcome)
    )
    with store.connection() as connection:
        rows = connection.execute(query)
        totals = [
            SiteTotal(site or "", outcome, int(n), int(day)) for site, outcome, n, day in rows
        ]
    return sorted(totals, key=lambda total: (total.site, total.outcome))


def count_open_jobs(store: ResultsReader) -> dict[str, int]:
    """Count open jobs by state; states without jobs are absent."""
    query = sa.select(job.c.state, sa.func.count()).where(job.c.state.in_(OPEN_JOB_STATES))
    with store.connection() as connection:
        return {row[0]: row[1] for row in connection.execute(query.group_by(job.c.state))}
