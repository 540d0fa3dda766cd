"""Queries on campaigns and jobs for pages: progress, failures and attempts.

Measurements are read for one job at a time or counted by an index.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.outcome import FAILURE_CLASSES, INTERRUPTED_CLASSES, Outcome
from treehammer.collectors.record.value_checks import is_storable
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.campaign_plan import CampaignPlan, SequentialPlan
from treehammer.sql.core.measurement_sql import has_outcome, is_superseded, outcome_column
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.core.schema import attempt, campaign, dimension_tables, job, measurement
from treehammer.sql.engine.database_engine import Row, load_by_ids, load_rows
from treehammer.sql.read.campaign_counts import CampaignCount, is_left_out
from treehammer.sql.read.overview_queries import CampaignState, load_campaign_states
from treehammer.sql.read.reader import ResultsReader

#: Failing measurements of a campaign whose messages are read.
MAX_FAILURE_MESSAGES = 2000
#: Labels of a campaign's jobs that are sorted by their values; more are sorted as text.
MAX_ORDERED_LABELS = 500
#: Measurements of one job that are read.
MAX_JOB_MEASUREMENTS = 500


def list_campaign_names(settings: Settings) -> Iterator[str]:
    """List the names that the shell proposes for a campaign; no titles with spaces."""
    yield "last"
    with ResultsReader.open(settings.database) as store:
        for row in store.campaigns():
            yield row.id
            if " " not in row.name:
                yield row.name


@dataclass(frozen=True)
class FailureMessage:
    """The message of a failed measurement of a campaign."""

    site: str
    job_id: str
    failure_class: str
    failure_kind: str
    failure_phase: str
    message: str


@dataclass(frozen=True)
class JobSummary:
    """A job, its last attempt, and counts of its measurements.

    Attributes:
        job: the job.
        last_attempt: None before the first.
        attempts: number of attempts.
        measurements: number of its measurements that count.
        failures: outcome that is not good, as roll-ups name it -> measurements, the most frequent
            first.
        message: the message of one of the most frequent failures.
    """

    job: JobRow
    last_attempt: AttemptRow | None
    attempts: int
    measurements: int
    failures: Mapping[str, int]
    message: str


def load_plans_with_own_metrics(store: ResultsReader) -> list[tuple[str, CampaignPlan]]:
    """Load identity and plan of campaigns whose tests state headline or exact metrics, newest first."""
    query = (
        sa.select(campaign.c.id, campaign.c.plan)
        .where(campaign.c.has_own_metrics == sa.true())
        .order_by(campaign.c.created_us.desc(), campaign.c.id)
    )
    with store.connection() as connection:
        return [(id_, plan) for id_, plan in connection.execute(query)]


def load_plans(
    store: ResultsReader, ids: Collection[str], *conditions: sa.ColumnElement[bool]
) -> dict[str, CampaignPlan]:
    """Load the plans of those campaigns that exist and meet conditions, by identity."""
    query = sa.select(campaign.c.id, campaign.c.plan).where(*conditions)
    with store.connection() as connection:
        return dict(map(tuple, load_by_ids(connection, query, campaign.c.id, sorted(ids))))


def load_sequential_plans(store: ResultsReader, ids: Collection[str]) -> dict[str, SequentialPlan]:
    """Map those campaigns that end when they are decided to the sequential part of their plans."""
    plans = load_plans(store, ids, campaign.c.is_sequential == sa.true())
    return {id_: plan.until_decided for id_, plan in plans.items() if plan.until_decided}


def list_campaigns(store: ResultsReader, first: int, count: int) -> tuple[list[CampaignState], int]:
    """List campaigns, the newest first; also return the number of all."""
    order = (campaign.c.created_us.desc(), campaign.c.id)
    with store.connection() as connection:
        total = connection.scalar(sa.select(sa.func.count()).select_from(campaign)) or 0
        query = sa.select(campaign.c.id).order_by(*order).offset(first).limit(count)
        ids = list(connection.scalars(query))
    return load_campaign_states(store, ids), total


def list_campaign_choices(
    store: ResultsReader, count: int, selected_ids: Collection[str]
) -> list[tuple[str, str]]:
    """List campaigns to choose from: the newest, and selected ones of any age."""
    newest = {id_: name for id_, name, _ in list_newest_campaigns(store, count)}
    older = [id_ for id_ in selected_ids if id_ not in newest]
    names = store.campaign_names(older)
    return [*newest.items(), *((id_, names.get(id_, id_)) for id_ in older)]


class CampaignTitle(NamedTuple):
    """A campaign in a list to choose from; without a name, its identity is the name."""

    id: str
    name: str
    created_us: int


def list_newest_campaigns(store: ResultsReader, count: int) -> list[CampaignTitle]:
    """List the newest campaigns, newest first."""
    query = sa.select(campaign.c.id, campaign.c.name, campaign.c.created_us)
    query = query.order_by(campaign.c.created_us.desc(), campaign.c.id).limit(count)
    with store.connection() as connection:
        return [CampaignTitle(id_, name or id_, us) for id_, name, us in connection.execute(query)]


def load_distinct_names(store: ResultsReader, ids: Collection[str]) -> dict[str, str]:
    """Load names of campaigns, with a short identity where two are equal."""
    names = store.campaign_names(ids)
    alike = Counter(names.values())
    short = next(
        size
        for size in (8, 16, None)
        if len({(n, i[:size]) for i, n in names.items()}) == len(names)
    )
    return {i: n if alike[n] == 1 else f"{n} ({i[:short]})" for i, n in names.items()}


def resolve_campaign(store: ResultsReader, reference: str) -> str:
    """Resolve a reference as :meth:`.ResultsReader.campaign` does, also to a campaign without a row.

    Raises:
        NothingToDoError: there is no campaign at all.
        ConfigError: none or several are meant.
    """
    try:
        return store.campaign(reference).id
    except (ConfigError, NothingToDoError):
        # A service may have received measurements without their campaign.
        of_campaign = sa.select(measurement.c.job_id).where(measurement.c.campaign_id == reference)
        with store.connection() as connection:
            if not is_storable(reference) or not connection.scalar(of_campaign.limit(1)):
                raise
        return reference


def load_campaign(store: ResultsReader, id_: str) -> CampaignRow:
    """Load a campaign by its identity.

    Raises:
        NothingToDoError: there is none.
    """
    return _load_by_id(store, CampaignRow, campaign, id_)


def load_job(store: ResultsReader, id_: str) -> JobRow:
    """Load a job by its identity.

    Raises:
        NothingToDoError: there is none.
    """
    return _load_by_id(store, JobRow, job, id_)


def find_job(store: ResultsReader, id_: str) -> JobRow:
    """Load a job as :func:`load_job` does; one without a row from its measurements, without a state.

    Raises:
        NothingToDoError: there are neither.
    """
    try:
        return load_job(store, id_)
    except NothingToDoError:
        if (row := _build_job_row(store, id_)) is None:
            raise
        return row


def _build_job_row(store: ResultsReader, id_: str) -> JobRow | None:
    names = ("campaign_id", "site", "door", "kind")
    # The index of measurements begins with the campaign.
    query = measurement_sql.select_columns(names).where(
        measurement.c.campaign_id.in_(sa.select(campaign.c.id)), measurement.c.job_id == id_
    )
    with store.connection() as connection:
        values = connection.execute(query.limit(1)).first()
    if values is None:
        return None
    campaign_id, site, door, kind = (str(value or "") for value in values)
    return JobRow(id_, campaign_id, site, door, kind, 0, "", "", "", 0, "")


def name_jobs(store: ResultsReader, ids: Collection[str]) -> dict[str, str]:
    """Map jobs to their labels and repeats; those without a row are left out."""
    query = sa.select(job.c.id, job.c.label, job.c.kind, job.c.repeat)
    with store.connection() as connection:
        return {
            id_: f"{label or kind}, repeat {repeat}"
            for id_, label, kind, repeat in load_by_ids(connection, query, job.c.id, sorted(ids))
        }


def load_measurements(
    store: ResultsReader, ids: Collection[str], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Load columns of some measurements; those that do not exist are left out."""
    query, column = measurement_sql.select_columns(columns), measurement.c.measurement_id
    with store.connection() as connection:
        rows = load_by_ids(connection, query, column, sorted(ids))
        return [dict(zip(columns, values, strict=True)) for values in rows]


def _load_by_id(store: ResultsReader, kind: type[Row], table: sa.Table, id_: str) -> Row:
    with store.connection() as connection:
        rows = load_rows(connection, kind, sa.select(table).where(table.c.id == id_))
    if not rows:
        raise NothingToDoError(f"no {table.name} of this identity was uploaded, or it was deleted")
    return rows[0]


def load_time_span_us(store: ResultsReader, campaign_id: str) -> tuple[int, int] | None:
    """Load the first start and the last known start or end of its jobs; None before.

    Both are microseconds since 1970 UTC, as last reported by the batch systems.
    """
    started, ended = attempt.c.started_us, attempt.c.ended_us
    query = sa.select(sa.func.min(started), sa.func.max(started), sa.func.max(ended))
    query = query.join(job, job.c.id == attempt.c.job_id)
    query = query.where(job.c.campaign_id == campaign_id, started > 0)
    with store.connection() as connection:
        first, *last = connection.execute(query).one()
    return None if first is None else (int(first), max(int(us or 0) for us in last))


def list_failure_messages(store: ResultsReader, campaign_id: str) -> list[FailureMessage]:
    """List messages of failed measurements by site and job, at most :data:`MAX_FAILURE_MESSAGES`."""
    names = ("site", "job_id", "failure_class", "failure_kind", "failure_phase", "failure_message")
    query = measurement_sql.select_columns(names).where(
        measurement.c.campaign_id == campaign_id,
        measurement.c.failure_class.is_not(None),
        sa.not_(is_superseded()),
    )
    with store.connection() as connection:
        rows = connection.execute(query.limit(MAX_FAILURE_MESSAGES))
        texts = sorted([value or "" for value in row] for row in rows)
    return [FailureMessage(*values) for values in texts]


def list_datasets(store: ResultsReader, campaign_id: str) -> list[tuple[str, str]]:
    """Name and hash of every dataset that its measurements read, sorted."""
    subject = dimension_tables["subject"].c
    subject_ids = sa.select(measurement.c.subject_id).where(
        measurement.c.campaign_id == campaign_id
    )
    query = sa.select(subject.dataset, subject.dataset_hash).distinct()
    query = query.where(subject.id.in_(subject_ids), subject.dataset.is_not(None))
    with store.connection() as connection:
        return sorted((name, hash_ or "") for name, hash_ in connection.execute(query))


@dataclass
class FailureCount:
    """Failures of one class at a site: measurements, and attempts that ended early.

    ``transient`` measurements may succeed when they are repeated, and attempts ``again`` were
    followed by another one.
    """

    failure: str
    site: str
    measurements: int = 0
    missing: int = 0
    transient: int = 0
    attempts: int = 0
    again: int = 0

    @property
    def order(self) -> tuple[bool, bool, int, int, int, str, str]:
        """Sort key: by size; those that a retry can cure come later, those that it cured last."""
        lasting = self.measurements - self.transient
        is_transient = self.transient > 0 and lasting <= 0
        is_cured = not (self.measurements or self.missing or self.attempts)
        sizes = (-lasting, -self.measurements, -self.attempts)
        return is_cured, is_transient, *sizes, self.failure, self.site


def count_failures(
    store: ResultsReader, campaign_id: str, count: CampaignCount
) -> list[FailureCount]:
    """Count the failures of a campaign by class and site, the largest lasting one first."""
    failures: dict[tuple[str, str], FailureCount] = {}

    def at(site: str, failure: str) -> FailureCount:
        return failures.setdefault((failure, site), FailureCount(failure, site))

    for site, of_site in count.sites.items():
        for failure, number in of_site.failures.items():
            at(site, failure).measurements = number
        for failure, number in of_site.missing.items():
            if failure in FAILURE_CLASSES:
                at(site, failure).missing = number
    later = attempt.alias("later")
    is_followed = sa.exists().where(
        later.c.job_id == attempt.c.job_id, later.c.number > attempt.c.number
    )
    failed_by = (job.c.site, attempt.c.failure_class)
    retries = sa.func.count(sa.case((is_followed.correlate(attempt), attempt.c.job_id)))
    failed_attempts = (
        sa.select(*failed_by, sa.func.count(), retries)
        .select_from(attempt.join(job))
        .where(job.c.campaign_id == campaign_id, attempt.c.failure_class.is_not(None))
    )
    with store.connection() as connection:
        for key, number in _count_transient(connection, campaign_id).items():
            if key in failures:
                failures[key].transient = number
        for site, failure, number, retried in connection.execute(
            failed_attempts.group_by(*failed_by)
        ):
            failed = at(site or "", failure)
            failed.attempts, failed.again = number - int(retried), int(retried)
    return sorted(failures.values(), key=lambda failed: failed.order)


def _count_transient(connection: Connection, campaign_id: str) -> dict[tuple[str, str], int]:
    """Count measurements whose failure a retry can cure: (class of failure, site) -> number."""
    by = (measurement_sql.catalogue_column("site"), measurement.c.failure_class)
    query = measurement_sql.select_columns(("site", "failure_class")).where(
        measurement.c.campaign_id == campaign_id,
        measurement.c.failure_class.is_not(None),
        measurement.c.failure_transient == sa.true(),
        sa.not_(is_left_out()),
    )
    rows = connection.execute(query.add_columns(sa.func.count()).group_by(*by))
    return {(failure, site or ""): int(number) for site, failure, number in rows}


def list_job_summaries(
    store: ResultsReader,
    campaign_id: str,
    only: Mapping[str, str],
    first: int,
    count: int,
    label_key: Callable[[str], Any] = str,
) -> tuple[list[JobSummary], int]:
    """List jobs by site, label and repeat; also return the number of all that match.

    Args:
        store: the database.
        campaign_id: campaign of the jobs.
        only: ``site``, ``state`` or ``failure`` (class of an attempt or a measurement,
            ``implausible``, or an unsupported feature, a value of :data:`.outcome.UNSUPPORTED_LABELS`) ->
            required value.
        first: first job listed, from 0.
        count: largest number of jobs listed.
        label_key: sorts labels, of which a campaign has few.
    """
    conditions = _list_job_conditions(campaign_id, only)
    with store.connection() as connection:
        order = (job.c.site, *_order_labels(connection, conditions, label_key))
        total = connection.scalar(sa.select(sa.func.count()).select_from(job).where(*conditions))
        query = sa.select(job).where(*conditions).order_by(*order).offset(first).limit(count)
        rows = load_rows(connection, JobRow, query)
        outcomes = _load_job_outcomes(connection, campaign_id, [row.id for row in rows])
        messages = _load_messages(connection, outcomes)
    attempts: defaultdict[str, list[AttemptRow]] = defaultdict(list)
    for attempt_row in store.attempts(row.id for row in rows):
        attempts[attempt_row.job_id].append(attempt_row)
    summaries = []
    for row in rows:
        counts = {outcome.outcome: outcome.measurements for outcome in outcomes.get(row.id, ())}
        number = sum(counts.values())
        counts.pop(Outcome.GOOD, None)
        last = attempts[row.id][-1] if attempts[row.id] else None
        message = messages.get(row.id, "")
        summaries.append(JobSummary(row, last, len(attempts[row.id]), number, counts, message))
    return summaries, total or 0


def _list_job_conditions(campaign_id: str, only: Mapping[str, str]) -> list[sa.ColumnElement[bool]]:
    conditions = [job.c.campaign_id == campaign_id]
    conditions += [job.c[name] == only[name] for name in ("site", "state") if only.get(name)]
    if only.get("failure"):
        conditions.append(_jobs_with_failure(campaign_id, only["failure"]))
    return conditions


def _order_labels(
    connection: Connection,
    conditions: Sequence[sa.ColumnElement[bool]],
    key: Callable[[str], Any],
) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the columns that order jobs by their labels, then by repeat and identity."""
    last_columns = (job.c.label, job.c.repeat, job.c.id)
    query = sa.select(job.c.label).distinct().where(*conditions, job.c.label.is_not(None))
    labels = list(connection.scalars(query.limit(MAX_ORDERED_LABELS + 1)))
    if not 1 < len(labels) <= MAX_ORDERED_LABELS:
        return last_columns
    places = {label: place for place, label in enumerate(sorted(labels, key=key))}
    return sa.case(places, value=job.c.label, else_=len(places)), *last_columns


class _JobOutcome(NamedTuple):
    """An outcome, how many measurements of a job had it, and the identity of one of them."""

    outcome: str
    measurements: int
    example: str


def _load_job_outcomes(
    connection: sa.Connection, campaign_id: str, jobs: Sequence[str]
) -> dict[str, list[_JobOutcome]]:
    """Map each job to the outcomes of its measurements that count, the most frequent first."""
    by = (measurement.c.job_id, outcome_column())
    query = sa.select(*by, sa.func.count(), sa.func.min(measurement.c.measurement_id))
    query = query.where(
        measurement.c.campaign_id == campaign_id,
        measurement.c.job_id.in_(jobs),
        sa.not_(is_left_out()),
    )
    outcomes_by_job: defaultdict[str, list[_JobOutcome]] = defaultdict(list)
    for job_id, outcome, number, example in connection.execute(query.group_by(*by)):
        if outcome not in INTERRUPTED_CLASSES:  # missing, as count_campaign counts them
            outcomes_by_job[job_id].append(_JobOutcome(outcome, int(number), example))
    for of_job in outcomes_by_job.values():
        of_job.sort(key=lambda outcome: (-outcome.measurements, outcome.outcome))
    return outcomes_by_job


def _load_messages(
    connection: sa.Connection, outcomes: Mapping[str, Sequence[_JobOutcome]]
) -> dict[str, str]:
    """Load an example of each job's most frequent failure: its message or its implausibility."""
    bad = (
        (outcome for outcome in of_job if outcome.outcome != Outcome.GOOD)
        for of_job in outcomes.values()
    )
    examples = [worst.example for of_job in bad if (worst := next(of_job, None))]
    columns = measurement.c.job_id, measurement.c.failure_message, measurement.c.implausible_reasons
    query = sa.select(*columns).where(measurement.c.measurement_id.in_(examples))
    return {id_: message or reasons or "" for id_, message, reasons in connection.execute(query)}


def _jobs_with_failure(campaign_id: str, failure: str) -> sa.ColumnElement[bool]:
    """Return the jobs of which an attempt or a measurement failed in that way."""
    measured = sa.select(measurement.c.job_id).where(measurement.c.campaign_id == campaign_id)
    attempted = sa.select(attempt.c.job_id).where(attempt.c.failure_class == failure)
    return sa.or_(
        job.c.id.in_(measured.where(has_outcome(failure))),
        job.c.id.in_(
            attempted.join(job, job.c.id == attempt.c.job_id).where(
                job.c.campaign_id == campaign_id
            )
        ),
    )


def load_job_measurements(
    store: ResultsReader, row: JobRow, columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Load the measurements of a job by attempt, round and position, :data:`MAX_JOB_MEASUREMENTS` at most."""
    order = (measurement.c.attempt, measurement.c.round, measurement.c.position)
    query = measurement_sql.select_columns(columns).where(
        measurement.c.campaign_id == row.campaign_id, measurement.c.job_id == row.id
    )
    with store.connection() as connection:
        rows = connection.execute(query.order_by(*order).limit(MAX_JOB_MEASUREMENTS))
        return [dict(zip(columns, values, strict=True)) for values in rows]
