"""Removal of the working folders of ended campaigns."""

from __future__ import annotations

import time
from collections.abc import Iterator

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.config import Settings
from treehammer.sql.core.rows import CampaignRow
from treehammer.submit.tracking.record_files import REJECTED_FOLDER
from treehammer.submit.tracking.staged_submissions import StagedSubmissions
from treehammer.submit.tracking.tracker import CampaignTracker


def campaigns_older_than(tracker: CampaignTracker, days: float) -> Iterator[CampaignRow]:
    """Yield campaigns of that age whose folders are no longer needed."""
    limit = time.time_ns() // 1000 - days * DAY_US
    for row in tracker.store.campaigns():
        if row.created_us <= limit and not retention_reason(tracker, row):
            yield row


def retention_reason(tracker: CampaignTracker, campaign: CampaignRow) -> str:
    """Collect the campaign, then explain why its folders are still needed; '' if they are not."""
    jobs = tracker.refresh_jobs(campaign)
    collected = tracker.collect_records(campaign)
    if not all(JobState(job.state).is_final for job in jobs):
        return f"jobs have not ended yet; see treehammer status {campaign.id}"
    if collected.conflicting:
        return collected.describe_rejections()[-1]
    for job in jobs:
        for sandbox in tracker.sandboxes(job).values():
            if (sandbox / REJECTED_FOLDER).is_dir():
                return f"rejected records wait for inspection in {sandbox / REJECTED_FOLDER}"
    return ""


def purge_campaign(tracker: CampaignTracker, campaign: CampaignRow, settings: Settings) -> int:
    """Remove an ended campaign from the batch systems and return the freed bytes.

    Jobs that an interrupted submission left cannot be queued afterwards.
    """
    StagedSubmissions(settings.submissions_dir).remove(campaign.id)
    jobs = tracker.store.jobs(campaign.id)
    freed = 0
    for name in sorted({job.batch_system for job in jobs}):
        if batch := tracker.find_batch_system(name, jobs):
            freed += batch.purge(
                [job.batch_id for job in jobs if job.batch_system == name and job.batch_id]
            )
    return freed
