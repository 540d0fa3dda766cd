"""Polling of submitted campaigns until all jobs have ended. Imports no planning code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.job_state import JobState
from treehammer.config import Settings
from treehammer.progress import ProgressFactory, no_progress
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.read.campaign_counts import CampaignCount
from treehammer.sql.write.store import Store
from treehammer.submit.batch.local.local_batch import LocalBatch
from treehammer.submit.reporting.campaign_upload import CampaignUploader
from treehammer.submit.sites.batch_selection import open_batch_system
from treehammer.submit.tracking.excluded_jobs import ExclusionGuard
from treehammer.submit.tracking.staged_submissions import StagedSubmissions
from treehammer.submit.tracking.tracker import (
    CampaignTracker,
    describe_unqueued_jobs,
)

#: Seconds between two polls of local jobs; polling takes CPU time from the measurements.  A job that
#: starts or ends is seen at once.
LOCAL_POLL_S = 2.0
#: Seconds between two polls of a shared batch system.
GRID_POLL_S = 5.0
#: Seconds without a change after which the reasons are looked for.
STANDSTILL_S = 60.0

#: Receives a line for the user.
Notify = Callable[[str], None]


def _ignore_line(line: str) -> None:
    """Discard a message."""


def describe_campaign_state(tracker: CampaignTracker, campaign: CampaignRow) -> str:
    """Describe the state of a campaign to a user who stops watching it."""
    jobs = tracker.refresh_jobs(campaign)
    unqueued = describe_unqueued_jobs(campaign, jobs)
    if not any(job.batch_id for job in jobs):
        return f"none of the jobs of {campaign.id} was submitted. {unqueued}"
    if unqueued:
        return f"the submitted jobs continue. {unqueued}"
    if all(JobState(job.state).is_final for job in jobs):
        return f"all jobs have ended; collect their measurements: treehammer collect {campaign.id}"
    return (
        f"the jobs continue. Progress: treehammer status {campaign.id}. "
        f"Cancel: treehammer cancel {campaign.id}"
    )


def make_tracker(store: Store, settings: Settings) -> CampaignTracker:
    """Make a tracker for the campaigns in a store."""
    return CampaignTracker(
        store,
        cache(lambda name: open_batch_system(name, settings)),  # called for every job
        under_way=StagedSubmissions(settings.submissions_dir).is_under_way,
        upload=CampaignUploader(settings).upload,
        guard=ExclusionGuard(settings).apply,
    )


def poll_campaign(
    tracker: CampaignTracker, campaign: CampaignRow, notify: Notify = _ignore_line
) -> CampaignCount:
    """Bring a campaign up to date, act on excluded sites and return the progress.

    Args:
        tracker: of the store that has the campaign.
        campaign: the campaign.
        notify: receives a line for each excluded site and for a failed upload.

    Raises:
        StoreError: the store rejects the records; all are still on disk.
        BatchError: a batch system does not answer.
    """
    progress = tracker.update(campaign)
    excluded = tracker.act_on_excluded_sites(campaign)
    for line in [*excluded, *tracker.upload_campaign(campaign)]:
        notify(line)
    return tracker.compute_progress(campaign) if excluded else progress


def follow_campaign(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    show: Callable[[CampaignCount], None],
    notify: Notify = _ignore_line,
) -> CampaignCount:
    """Poll until every job has ended; each message is passed to ``notify`` once."""
    notified: set[str] = set()

    def notify_once(line: str) -> None:
        if line not in notified:
            notified.add(line)
            notify(line)

    jobs = tracker.store.jobs(campaign.id)
    local = _find_local_batch(tracker, jobs)
    batch_ids = [job.batch_id for job in jobs if job.batch_id]
    last, changed_s = "", time.monotonic()
    while True:
        # Before the poll, so that no change between both is missed.
        state_times = local.state_times(batch_ids) if local else []
        progress = poll_campaign(tracker, campaign, notify_once)
        show(progress)
        state = f"{progress.total.outstanding} {progress.total.describe_jobs()}"
        if state != last:
            last, changed_s = state, time.monotonic()
        elif local is None and time.monotonic() - changed_s > STANDSTILL_S:
            changed_s = time.monotonic()
            for line in tracker.describe_obstacles(campaign):
                notify_once(line)
        if progress.is_finished:
            for line in tracker.upload_campaign(campaign, everything=True):
                notify_once(line)
            return progress
        if local is not None:
            local.wait_for_change(batch_ids, state_times, LOCAL_POLL_S)
        else:
            time.sleep(GRID_POLL_S)


def _find_local_batch(tracker: CampaignTracker, jobs: Iterable[JobRow]) -> LocalBatch | None:
    """Return the local queue if it has all jobs."""
    if any(job.batch_system != LOCAL_BATCH for job in jobs):
        return None
    batch = tracker.batch_system(LOCAL_BATCH)
    return batch if isinstance(batch, LocalBatch) else None


def wait_for_campaign(
    campaign: CampaignRow, settings: Settings, bars: ProgressFactory = no_progress
) -> CampaignCount:
    """Collect until every job of a campaign has ended, with a progress bar."""
    with (
        Store.open(settings.database) as store,
        bars("Measuring", campaign.planned_measurements) as step,
    ):
        return follow_campaign(
            make_tracker(store, settings),
            campaign,
            lambda progress: step(
                progress.total.planned - progress.total.outstanding, progress.total.describe_jobs()
            ),
        )
