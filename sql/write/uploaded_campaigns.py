"""Campaigns uploaded by the installation that submitted them, during and after their run.

The submitting installation tracks the jobs; this one stores them as tracked elsewhere, and later
uploads replace earlier ones. Jobs that this installation tracks itself, as in a shared database,
are not modified.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import FINAL_JOB_STATES
from treehammer.sql.core import schema
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.engine.row_mapping import (
    fetch_rows,
    insert_missing_rows,
    split_ids,
    upsert_rows,
)
from treehammer.sql.write.audit_trail import (
    CAMPAIGN,
    REPLICA,
    Delivery,
    Sender,
    list_job_deliveries,
    record_deliveries,
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
    known: int


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
    jobs = {row.id: row for row in _fetch_job_rows(connection, JobRow, schema.job.c.id, ids)}
    stored = _group_attempts(_fetch_job_rows(connection, AttemptRow, schema.attempt.c.job_id, ids))
    uploaded = _group_attempts(upload.attempts)
    changed_jobs: list[JobRow] = []
    changed_attempts: list[AttemptRow] = []
    for job in upload.jobs:
        later = max(uploaded[job.id], default=0) > max(stored[job.id], default=0)
        if not _supersedes(job, jobs.get(job.id), later=later):
            continue
        marked = job.as_external()
        change_counts[_classify_change(marked, jobs.get(job.id))] += 1
        changed_jobs.append(marked)
        for number, attempt in uploaded[job.id].items():
            before = stored[job.id].get(number)
            if before is None or not _reopens(attempt, before):
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


def _reopens(attempt: AttemptRow, stored: AttemptRow) -> bool:
    """Decide if an uploaded attempt, which came late, still runs although the stored one ended."""
    return stored.state in FINAL_JOB_STATES and attempt.state not in FINAL_JOB_STATES


def _supersedes(job: JobRow, stored: JobRow | None, *, later: bool) -> bool:
    """Decide if an uploaded job replaces the stored one; ``later`` marks a later attempt.

    Uploads may arrive out of order: a finished job stays finished until it is queued again.
    """
    if stored is None or later:
        return stored is None or stored.is_external or stored.state in FINAL_JOB_STATES
    return stored.is_external and (
        stored.state not in FINAL_JOB_STATES
        or job.state in FINAL_JOB_STATES
        or job.batch_id != stored.batch_id
    )


def _classify_change(uploaded: JobRelatedRow, stored: JobRelatedRow | None) -> str:
    if stored is None:
        return "new"
    return "known" if uploaded == stored else "changed"


def _fetch_job_rows(
    connection: Connection, kind: type[JobRelatedRow], of: sa.Column[str], ids: Sequence[str]
) -> list[JobRelatedRow]:
    """Fetch the stored rows of these jobs."""
    rows: list[JobRelatedRow] = []
    for chunk in split_ids(ids):
        query = sa.select(of.table).where(of.in_(chunk))
        rows += fetch_rows(connection, kind, query)
    return rows


def _find_missing(
    connection: Connection, table: sa.Table, rows: Sequence[ImmutableRow]
) -> list[ImmutableRow]:
    """Select the rows that are not stored yet."""
    existing_ids: set[str] = set()
    for ids in split_ids(row.id for row in rows):
        query = sa.select(table.c.id).where(table.c.id.in_(ids))
        existing_ids.update(connection.scalars(query))
    return [row for row in rows if row.id not in existing_ids]
