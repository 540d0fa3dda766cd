"""The store: the only writer of the results database.

It also takes campaigns that another installation uploads during and after their run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import FINAL_JOB_STATES
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import MAX_TEXT
from treehammer.sql.core import schema
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.rows import (
    LOCAL_OWNER,
    AttemptRow,
    AuditRow,
    CampaignRow,
    InstructionRow,
    JobRow,
    PairRow,
    ReplicaRow,
    VerdictRow,
)
from treehammer.sql.engine.database_engine import (
    insert_missing_rows,
    load_by_ids,
    load_rows_by_ids,
    read_transaction,
    replace_comparison_rows,
    upsert_rows,
    write_transaction,
)
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write import audit_trail, maintenance, quality_flags, rollups
from treehammer.sql.write.audit_trail import (
    CAMPAIGN,
    JOB,
    REPLICA,
    Delivery,
    Sender,
    assign_campaign,
    list_deliveries,
    list_job_deliveries,
    make_local_sender,
    record_deliveries,
    require_covered,
)
from treehammer.sql.write.maintenance import (
    ChangeScope,
    DatabaseChange,
    PruneResult,
    ScopeCount,
    apply_change,
    count_scope,
)
from treehammer.sql.write.recording import (
    TRANSACTION_MEASUREMENTS,
    AddResult,
    add_measurements,
    split_batches,
    sum_results,
)

JobRelatedRow = TypeVar("JobRelatedRow", JobRow, AttemptRow)
ImmutableRow = TypeVar("ImmutableRow", CampaignRow, ReplicaRow)


@dataclass(frozen=True)
class CampaignUpload:
    """Campaign with updates of its jobs, their attempts, and replicas of its datasets."""

    campaign: CampaignRow
    jobs: Sequence[JobRow] = ()
    attempts: Sequence[AttemptRow] = ()
    replicas: Sequence[ReplicaRow] = ()

    @property
    def row_count(self) -> int:
        """Return the total number of rows."""
        return 1 + len(self.jobs) + len(self.attempts) + len(self.replicas)


@dataclass(frozen=True)
class UploadResult:
    """Number of new, changed and unchanged rows of an upload."""

    new: int
    changed: int
    unchanged: int


def apply_upload(connection: Connection, upload: CampaignUpload, sender: Sender) -> UploadResult:
    """Write new and changed rows without committing.

    Checks of replicas apply to the campaigns of their sender's group only, unless the sender acts
    for all.

    Args:
        connection: connection of an exclusive write transaction.
        upload: upload; every attempt belongs to one of its jobs.
        sender: holder of the key.

    Raises:
        ForeignCampaignError: the campaign belongs to another group, or a job to another campaign.
    """
    id_, owner = upload.campaign.id, "" if sender.acts_for_all else sender.owner
    owned = [replace(check, owner=owner) for check in upload.replicas]
    # Only the first sender of a check has it: to delete the checks of a key must spare others.
    findings = _find_missing(connection, schema.replica, owned)
    record_deliveries(
        connection,
        [
            Delivery(sender, CAMPAIGN, id_, [id_]),
            *list_job_deliveries(upload.jobs, sender),
            Delivery(sender, REPLICA, id_, [check.id for check in findings]),
        ],
    )
    change_counts: Counter[str] = Counter()
    jobs, attempts = _find_updates(connection, upload, change_counts)
    campaigns = _find_missing(connection, schema.campaign, [upload.campaign])
    change_counts["new"] += len(campaigns) + len(findings)
    insert_missing_rows(connection, schema.campaign, campaigns)
    upsert_rows(connection, schema.job, jobs)
    upsert_rows(connection, schema.attempt, attempts)
    insert_missing_rows(connection, schema.replica, findings)
    return UploadResult(
        change_counts["new"],
        change_counts["changed"],
        upload.row_count - change_counts["new"] - change_counts["changed"],
    )


def _find_updates(
    connection: Connection, upload: CampaignUpload, change_counts: Counter[str]
) -> tuple[list[JobRow], list[AttemptRow]]:
    """Select the jobs and attempts to write; ``change_counts`` counts new and changed ones."""
    ids = [job.id for job in upload.jobs]
    of_job, of_attempt = sa.select(schema.job), sa.select(schema.attempt)
    job_rows = load_rows_by_ids(connection, JobRow, of_job, schema.job.c.id, ids)
    jobs = {row.id: row for row in job_rows}
    existing = _group_attempts(
        load_rows_by_ids(connection, AttemptRow, of_attempt, schema.attempt.c.job_id, ids)
    )
    uploaded = _group_attempts(upload.attempts)
    changed_jobs: list[JobRow] = []
    changed_attempts: list[AttemptRow] = []
    for job in upload.jobs:
        later = max(uploaded[job.id], default=0) > max(existing[job.id], default=0)
        if not _supersedes(job, jobs.get(job.id), later=later):
            continue
        marked = job.as_external()
        change_counts[_classify_change(marked, jobs.get(job.id))] += 1
        changed_jobs.append(marked)
        for number, attempt in uploaded[job.id].items():
            before = existing[job.id].get(number)
            # One that came late may still run although the stored one has ended.
            was_final = before is not None and before.state in FINAL_JOB_STATES
            if attempt.state in FINAL_JOB_STATES or not was_final:
                change_counts[_classify_change(attempt, before)] += 1
                changed_attempts.append(attempt)
    return changed_jobs, changed_attempts


def _group_attempts(
    attempts: Iterable[AttemptRow],
) -> defaultdict[str, dict[int, AttemptRow]]:
    """Group attempts by job and number."""
    by_job: defaultdict[str, dict[int, AttemptRow]] = defaultdict(dict)
    for attempt in attempts:
        by_job[attempt.job_id][attempt.number] = attempt
    return by_job


def _supersedes(job: JobRow, existing: JobRow | None, *, later: bool) -> bool:
    """Decide if an uploaded job replaces the stored one; ``later`` marks a later attempt.

    Uploads may arrive out of order: a finished job stays finished until it is queued again.
    """
    if existing is None or later:
        return existing is None or existing.is_external or existing.state in FINAL_JOB_STATES
    return existing.is_external and (
        existing.state not in FINAL_JOB_STATES
        or job.state in FINAL_JOB_STATES
        or job.batch_id != existing.batch_id
    )


def _classify_change(uploaded: JobRelatedRow, existing: JobRelatedRow | None) -> str:
    if existing is None:
        return "new"
    return "known" if uploaded == existing else "changed"


def _find_missing(
    connection: Connection, table: sa.Table, rows: Sequence[ImmutableRow]
) -> list[ImmutableRow]:
    """Select the rows that are not stored yet."""
    existing = load_by_ids(connection, sa.select(table.c.id), table.c.id, (row.id for row in rows))
    existing_ids = {id_ for (id_,) in existing}
    return [row for row in rows if row.id not in existing_ids]


class Store(ResultsReader):
    """Results database opened for reading and writing.

    Every method raises :class:`~treehammer.errors.StoreError` when the database refuses; recorded
    data is never lost by that.
    """

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Self:
        """Open the database at a SQLAlchemy URL.

        Args:
            url: for instance ``sqlite:////home/me/results.db``.
            create: create a missing database, and an SQLite file's folder.

        Raises:
            ConfigError: the URL is wrong.
            NothingToDoError: no database exists and ``create`` is false.
            StoreError: the database cannot be opened or has another schema version.
        """
        return cls(open_engine(url, create=create))

    @contextmanager
    def writing_connection(self) -> Iterator[Connection]:
        """Open an exclusive write transaction, for the tables of :mod:`treehammer.watch.store`."""
        with write_transaction(self._engine) as connection:
            yield connection

    # Measurements

    def add(
        self,
        measurements: Iterable[Measurement],
        deliveries: Iterable[Delivery] | None = None,
        *,
        group: str = LOCAL_OWNER,
    ) -> AddResult:
        """Write measurements, each exactly once however often it arrives.

        They are written in transactions of :data:`~.recording.TRANSACTION_MEASUREMENTS`. After an
        error all earlier ones are kept, and adding everything again is harmless.

        Args:
            measurements: to write.
            deliveries: of them, if keys brought them; None for this installation's own.
            group: gets the campaigns without an owner that this installation writes.

        Raises:
            ForeignCampaignError: a campaign or job belongs to somebody else; nothing of its
                transaction was written.
        """
        receipts = None if deliveries is None else tuple(deliveries)
        results: list[AddResult] = []
        for batch in split_batches(measurements, TRANSACTION_MEASUREMENTS):
            sender = make_local_sender(group)
            sent = list_deliveries(batch, sender) if receipts is None else receipts
            require_covered(batch, sent)
            with write_transaction(self._engine) as connection:
                record_deliveries(connection, sent)
                results.append(add_measurements(connection, batch))
        return sum_results(results)

    def preview_add(self, measurements: Iterable[Measurement]) -> AddResult:
        """Predict the result of :meth:`add` without writing or locking.

        An identity that recurs in a later batch counts as new again, because the earlier batch
        was not written.
        """
        with read_transaction(self._engine) as connection:
            return add_measurements(connection, measurements, dry_run=True)

    # Campaigns, jobs, attempts

    def add_campaign(
        self,
        campaign: CampaignRow,
        jobs: Iterable[JobRow],
        permit: Callable[[Connection], None] | None = None,
        *,
        key_id: str = "",
        group: str = LOCAL_OWNER,
    ) -> None:
        """Insert a campaign and its jobs; existing rows stay unchanged.

        Args:
            campaign: to insert.
            jobs: of the campaign.
            permit: called first, in the same transaction; its error leaves the database unchanged.
            key_id: key that signs the tokens of the jobs, whose group gets the campaign.
            group: gets it otherwise, unless it has an owner.

        Raises:
            ForeignCampaignError: a job belongs to another campaign.
        """
        jobs = [*jobs]
        with write_transaction(self._engine) as connection:
            if permit is not None:
                permit(connection)
            sender = assign_campaign(connection, campaign.id, key_id, group)
            deliveries = [
                Delivery(sender, JOB, campaign.id, ()),
                *list_job_deliveries(jobs, sender),
            ]
            record_deliveries(connection, deliveries)
            insert_missing_rows(connection, schema.campaign, [campaign])
            insert_missing_rows(connection, schema.job, jobs)

    def extend_campaign(self, campaign_id: str, jobs: Iterable[JobRow]) -> None:
        """Add jobs to a stored campaign, and to the numbers that it plans.

        Raises:
            ForeignCampaignError: a job belongs to another campaign.
        """
        jobs = [*jobs]
        table = schema.campaign
        with write_transaction(self._engine) as connection:
            record_deliveries(connection, list_job_deliveries(jobs, make_local_sender()))
            insert_missing_rows(connection, schema.job, jobs)
            connection.execute(
                table.update()
                .where(table.c.id == campaign_id)
                .values(
                    planned_jobs=table.c.planned_jobs + len(jobs),
                    planned_measurements=table.c.planned_measurements
                    + sum(job.planned_measurements for job in jobs),
                )
            )

    def include_sites(self, campaign_id: str, reasons: Mapping[str, str]) -> None:
        """Add sites, and labels of doors, to those that a campaign uses although they are excluded.

        Args:
            campaign_id: the campaign.
            reasons: site or label -> why it is excluded.
        """
        table = schema.campaign
        is_own = table.c.id == campaign_id
        with write_transaction(self._engine) as connection:
            plan = connection.scalar(sa.select(table.c.plan).where(is_own)) or CampaignPlan()
            plan = plan.replace(included={**plan.included, **reasons})
            connection.execute(table.update().where(is_own).values(plan=plan))

    def apply_upload(self, upload: CampaignUpload, sender: Sender) -> UploadResult:
        """Record a campaign that another installation uploaded.

        Raises:
            ForeignCampaignError: it belongs to somebody else.
        """
        with write_transaction(self._engine) as connection:
            return apply_upload(connection, upload, sender)

    def find_owner(self, campaign_id: str) -> str | None:
        """Return the group that a campaign belongs to; None if nothing of it was written."""
        with read_transaction(self._engine) as connection:
            column = schema.campaign_owner.c
            query = sa.select(column.owner).where(column.campaign_id == campaign_id)
            return connection.scalar(query)

    def set_jobs(self, jobs: Iterable[JobRow]) -> None:
        """Insert or replace jobs.

        Raises:
            ForeignCampaignError: a job belongs to another campaign.
        """
        jobs = [*jobs]
        with write_transaction(self._engine) as connection:
            record_deliveries(connection, list_job_deliveries(jobs, make_local_sender()))
            upsert_rows(connection, schema.job, jobs)

    def set_attempts(self, attempts: Iterable[AttemptRow]) -> None:
        """Insert or replace attempts."""
        with write_transaction(self._engine) as connection:
            upsert_rows(connection, schema.attempt, attempts)

    # Replicas

    def add_replicas(self, findings: Iterable[ReplicaRow]) -> None:
        """Insert replica checks; existing rows stay unchanged.

        Messages are cut to :data:`~treehammer.collectors.record.metric_catalogue.MAX_TEXT`
        characters.
        """
        shortened = (replace(finding, message=finding.message[:MAX_TEXT]) for finding in findings)
        with write_transaction(self._engine) as connection:
            insert_missing_rows(connection, schema.replica, shortened)

    def mark_bad_replicas(self) -> int:
        """Flag measurements that read a replica while it was bad as implausible.

        Returns:
            number of newly flagged measurements.
        """
        findings = self.replicas()
        if all(finding.good for finding in findings):
            return 0
        with write_transaction(self._engine) as connection:
            return quality_flags.flag_bad_replica_reads(connection, findings)

    # Changes of recorded results

    def count_scope(self, scope: ChangeScope) -> list[ScopeCount]:
        """Count the measurements of a scope by campaign and site."""
        with read_transaction(self._engine) as connection:
            return count_scope(connection, scope)

    def apply_change(self, change: DatabaseChange) -> int:
        """Quarantine, restore or delete measurements; return their number."""
        with write_transaction(self._engine) as connection:
            return apply_change(connection, change)

    def list_changes(self, since_us: int = 0) -> list[AuditRow]:
        """List the audit trail since a time, newest first."""
        columns = schema.audit_entry.c
        query = sa.select(schema.audit_entry).where(columns.changed_us >= since_us)
        return self.load_rows(AuditRow, query.order_by(columns.changed_us.desc(), columns.id))

    def add_audit_entries(self, entries: Sequence[AuditRow]) -> None:
        """Add entries to the audit trail."""
        with write_transaction(self._engine) as connection:
            audit_trail.add_entries(connection, entries)

    # Maintenance

    def rebuild_rollups(self) -> None:
        """Rebuild all roll-ups from the measurements."""
        with write_transaction(self._engine) as connection:
            rollups.rebuild_rollups(connection)

    def prunable(self, category: str, before: date) -> PruneResult:
        """Measure the effect of :meth:`prune`; ``category`` is a key of ``retention.PRUNABLE``."""
        with read_transaction(self._engine) as connection:
            return maintenance.measure_prunable(connection, category, before)

    def prune(self, category: str, before: date) -> PruneResult:
        """Remove bulky columns of measurements that began before a day (UTC).

        Metrics, histograms, failures and roll-ups stay. Each day is one transaction, so that
        others can write in between.
        """
        with read_transaction(self._engine) as connection:
            pruned = maintenance.measure_prunable(connection, category, before)
            days = maintenance.list_prunable_days(connection, category, before)
        for day in days:
            with write_transaction(self._engine) as connection:
                maintenance.prune_day(connection, category, day)
        return pruned

    # Comparisons

    def replace_comparison(
        self, comparison_id: str, pairs: Iterable[PairRow], verdicts: Iterable[VerdictRow]
    ) -> None:
        """Write the pairs and verdicts of a comparison in place of its earlier ones."""
        with write_transaction(self._engine) as connection:
            replace_comparison_rows(connection, schema.pair, comparison_id, list(pairs))
            replace_comparison_rows(connection, schema.verdict, comparison_id, list(verdicts))

    # Counts of instructions

    def replace_instruction_count(self, rows: Sequence[InstructionRow]) -> None:
        """Write the rows of one count in place of its earlier ones."""
        table = schema.instruction_count
        ids = {row.count_id for row in rows}
        with write_transaction(self._engine) as connection:
            connection.execute(sa.delete(table).where(table.c.count_id.in_(ids)))
            insert_missing_rows(connection, table, rows)

    def add_instruction_counts(self, rows: Iterable[InstructionRow]) -> None:
        """Insert rows of counts; existing rows stay unchanged."""
        with write_transaction(self._engine) as connection:
            insert_missing_rows(connection, schema.instruction_count, rows)
