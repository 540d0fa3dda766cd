"""Campaigns, jobs and attempts of another installation, merged with the stored ones.

Only finished jobs are merged: the installation that submitted a job follows it, and its batch system
cannot be queried here.  Unfinished jobs that are followed here stay unchanged.  Of a job that finished
on both sides, the later attempt wins.  A job that was uploaded while it ran has ended as the file
says, unless it was queued anew since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from treehammer.collectors.job_state import FINAL_JOB_STATES
from treehammer.sql.core.rows import AttemptRow, CampaignRow, InstructionRow, JobRow, ReplicaRow
from treehammer.sql.transfer.companion_tables import parse_rows
from treehammer.sql.transfer.file_readers import MeasurementFile
from treehammer.sql.write.store import Store


def merge_companions(
    store: Store, incoming: MeasurementFile, counted: set[str] | None = None, *, group: str
) -> int:
    """Import companion tables of a file; existing rows are kept.

    Args:
        store: to fill.
        incoming: a file.
        counted: campaigns of files before, to which its own are added: only count, write nothing.
        group: gets the campaigns that have no owner here.

    Returns:
        how many campaigns were not there.
    """
    existing_ids = {campaign.id for campaign in store.campaigns()} | (counted or set())
    batches = [parse_rows(CampaignRow, batch) for batch in incoming.companion("campaign")]
    new = {row.id: row for row in chain.from_iterable(batches) if row.id not in existing_ids}
    if counted is not None:
        counted.update(new)
        return len(new)
    for campaign in new.values():
        store.add_campaign(campaign, [], group=group)
    _merge_jobs(_JobMerger(store), incoming)
    for batch in incoming.companion("replica"):
        store.add_replicas(parse_rows(ReplicaRow, batch))
    _merge_instruction_counts(store, incoming)
    return len(new)


def _merge_instruction_counts(store: Store, incoming: MeasurementFile) -> None:
    # Rows of two counts never mix: a stored one is kept unchanged.
    counted_here = {row.count_id for row in store.instruction_counts()}
    for batch in incoming.companion("instruction_count"):
        rows = parse_rows(InstructionRow, batch)
        store.add_instruction_counts(row for row in rows if row.count_id not in counted_here)


def _merge_jobs(merger: _JobMerger, incoming: MeasurementFile) -> None:
    for batch in incoming.companion("job"):
        merger.add_jobs(parse_rows(JobRow, batch))
    for batch in incoming.companion("attempt"):
        merger.add_attempts(parse_rows(AttemptRow, batch))


class _JobMerger:
    """Takes in jobs, then attempts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._campaigns = {campaign.id: campaign for campaign in store.campaigns()}
        #: Jobs of which attempts are taken in.
        self._wanted: set[str] = set()
        #: Those of them that are not the same in both.
        self._otherwise: dict[str, JobRow] = {}

    def add_jobs(self, jobs: Iterable[JobRow]) -> None:
        by_campaign: defaultdict[str, list[JobRow]] = defaultdict(list)
        for job in jobs:
            if job.state in FINAL_JOB_STATES and job.campaign_id in self._campaigns:
                by_campaign[job.campaign_id].append(job)
        for id_, campaign_jobs in by_campaign.items():
            self._add_campaign_jobs(self._campaigns[id_], campaign_jobs)

    def _add_campaign_jobs(self, campaign: CampaignRow, jobs: Sequence[JobRow]) -> None:
        stored = {job.id: job for job in self._store.jobs(campaign.id)}
        missing = [job for job in jobs if job.id not in stored]
        self._store.add_campaign(campaign, missing)
        updatable = [job for job in jobs if _is_updatable(stored.get(job.id))]
        self._wanted.update(job.id for job in (*missing, *updatable))
        self._update_jobs(updatable, stored)

    def _update_jobs(self, jobs: Sequence[JobRow], stored: Mapping[str, JobRow]) -> None:
        """End the jobs that are unfinished here, and remember those that differ."""
        ended = [job.as_external() for job in jobs if _has_ended(job, stored[job.id])]
        self._store.set_jobs(ended)
        for job in jobs:
            if job != stored[job.id]:
                self._otherwise[job.id] = job.as_external() if stored[job.id].is_external else job

    def add_attempts(self, attempts: Iterable[AttemptRow]) -> None:
        accepted = [attempt for attempt in attempts if attempt.job_id in self._wanted]
        stored: defaultdict[str, dict[int, AttemptRow]] = defaultdict(dict)
        for attempt in self._store.attempts(attempt.job_id for attempt in accepted):
            stored[attempt.job_id][attempt.number] = attempt
        missing = [a for a in accepted if _is_more_complete(a, stored[a.job_id].get(a.number))]
        later = {a.job_id for a in missing if a.number > max(stored[a.job_id], default=0)}
        self._store.set_attempts(missing)
        self._store.set_jobs(self._otherwise[id_] for id_ in later & self._otherwise.keys())


def _is_updatable(stored: JobRow | None) -> bool:
    return stored is not None and (stored.state in FINAL_JOB_STATES or stored.is_external)


def _has_ended(job: JobRow, stored: JobRow) -> bool:
    """Return whether a finished job of the file is the one that is unfinished here."""
    return stored.state not in FINAL_JOB_STATES and stored.batch_id in ("", job.batch_id)


def _is_more_complete(attempt: AttemptRow, stored: AttemptRow | None) -> bool:
    return stored is None or (
        stored.state not in FINAL_JOB_STATES and attempt.state in FINAL_JOB_STATES
    )
