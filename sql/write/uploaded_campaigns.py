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

from treehammer.collectors.job_state import FINAL_JOB_STATES
from treehammer.sql.core import schema
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.engine.row_mapping import (
    fetch_rows,
    insert_missing_rows,
    split_ids,
    upsert_rows,
)
from treehammer.sql.write.ownership import (
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


def apply_upload(connection: Connection, handed: CampaignUpload, sender: Sender) -> UploadResult:
    """Write new and changed rows without committing.

    Checks of replicas apply to the campaigns of their sender's group only, unless the sender acts
    for all.

    Args:
        connection: connection of an exclusive write transaction.
        handed: upload; every attempt belongs to one of its jobs.
        sender: holder of the key.

    Raises:
        ForeignCampaignError: the campaign belongs to another group, or a job to another campaign.
    """
    id_, owner = handed.campaign.id, "" if sender.acts_for_all else sender.owner
    owned = [replace(check, owner=owner) for check in handed.replicas]
    # Only the first sender of a check has it: to delete the checks of a key must spare others.
    findings = _find_missing(connection, schema.replica, owned)
    record_deliveries(
        connection,
        [
            Delivery(sender, CAMPAIGN, id_, [id_]),
            *list_job_deliveries(handed.jobs, sender),
            Delivery(sender, REPLICA, id_, [check.id for check in findings]),
        ],
    )
    fates: Counter[str] = Counter()
    jobs, attempts = _find_updates(connection, handed, fates)
    campaigns = _find_missing(connection, schema.campaign, [handed.campaign])
    fates["new"] += len(campaigns) + len(findings)
    insert_missing_rows(connection, schema.campaign, campaigns)
    upsert_rows(connection, schema.job, jobs)
    upsert_rows(connection, schema.attempt, attempts)
    insert_missing_rows(connection, schema.replica, findings)
    return UploadResult(
        fates["new"], fates["changed"], handed.row_count - fates["new"] - fates["changed"]
    )


def _find_updates(
    connection: Connection, handed: CampaignUpload, fates: Counter[str]
) -> tuple[list[JobRow], list[AttemptRow]]:
    """Select the jobs and attempts to write; ``fates`` counts new and changed ones."""
    ids = [job.id for job in handed.jobs]
    jobs = {row.id: row for row in _fetch_job_rows(connection, JobRow, schema.job.c.id, ids)}
    stored = _group_attempts(_fetch_job_rows(connection, AttemptRow, schema.attempt.c.job_id, ids))
    uploaded = _group_attempts(handed.attempts)
    job_news: list[JobRow] = []
    attempt_news: list[AttemptRow] = []
    for job in handed.jobs:
        later = max(uploaded[job.id], default=0) > max(stored[job.id], default=0)
        if not _supersedes(job, jobs.get(job.id), later=later):
            continue
        marked = job.as_external()
        fates[_classify_change(marked, jobs.get(job.id))] += 1
        job_news.append(marked)
        for number, attempt in uploaded[job.id].items():
            before = stored[job.id].get(number)
            if before is None or not _reopens(attempt, before):
                fates[_classify_change(attempt, before)] += 1
                attempt_news.append(attempt)
    return job_news, attempt_news


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


def _classify_change(now: JobRelatedRow, before: JobRelatedRow | None) -> str:
    if before is None:
        return "new"
    return "known" if now == before else "changed"


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
