"""From a submission to its results: looking, following, waiting; needs nothing that plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.job_state import JobState
from treehammer.config import Settings
from treehammer.progress import ProgressFactory, no_progress
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.submit.reporting.campaign_upload import CampaignUploader
from treehammer.submit.sites.batch_selection import open_batch_system
from treehammer.submit.tracking import circuit_breaker
from treehammer.submit.tracking.submission_locks import SubmissionLocks
from treehammer.submit.tracking.tracker import CampaignTracker, TrackingProgress

#: Seconds between two looks while waiting: the jobs measure meanwhile, and looking costs time.
LOCAL_POLL_S = 2.0
#: The same where others are asked, who have more to do than to answer us.
GRID_POLL_S = 5.0

#: Receives a line for the user.
Notify = Callable[[str], None]


def _ignore_line(line: str) -> None:
    """What programs do that need no lines."""


def describe_campaign_state(tracker: CampaignTracker, campaign: CampaignRow) -> str:
    """What a user who stops watching is told."""
    jobs = tracker.refresh_jobs(campaign)
    if not any(job.batch_id for job in jobs):
        return f"none of the jobs of {campaign.id} was submitted. Submit again"
    if all(JobState(job.state).is_final for job in jobs):
        return f"every job is over. Take in what they measured: treehammer collect {campaign.id}"
    return (
        f"the jobs go on. Look: treehammer status {campaign.id}. "
        f"End them: treehammer cancel {campaign.id}"
    )


def make_tracker(store: Store, settings: Settings) -> CampaignTracker:
    """A tracker of the campaigns in a store."""
    return CampaignTracker(
        store,
        cache(lambda name: open_batch_system(name, settings)),  # asked for once a job
        under_way=SubmissionLocks(settings.submissions_dir).is_under_way,
        upload=CampaignUploader(settings).upload,
    )


def poll_campaign(
    tracker: CampaignTracker, campaign: CampaignRow, say: Notify = _ignore_line
) -> TrackingProgress:
    """Bring everything up to date, stop the sites that fail, and say how far the campaign is.

    Args:
        tracker: of the store that has the campaign.
        campaign: which.
        say: receives a line for each site that was stopped, and where the results service could not
            be told.

    Raises:
        StoreError: the store refuses; every record is still on disk.
        BatchError: a batch system does not answer.
    """
    progress = tracker.update(campaign)
    stopped = circuit_breaker.stop_failing_sites(tracker, campaign)
    for line in [*stopped, *tracker.upload_campaign(campaign)]:
        say(line)
    return tracker.compute_progress(campaign) if stopped else progress


def follow_campaign(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    show: Callable[[TrackingProgress], None],
    say: Notify = _ignore_line,
) -> TrackingProgress:
    """Look and collect again and again until every job is final; each line is said once."""
    said: set[str] = set()

    def once(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    jobs = tracker.store.jobs(campaign.id)
    here = all(job.batch_system == LOCAL_BATCH for job in jobs)
    while True:
        progress = poll_campaign(tracker, campaign, once)
        show(progress)
        if progress.is_finished:
            for line in tracker.upload_campaign(campaign, everything=True):
                once(line)
            return progress
        time.sleep(LOCAL_POLL_S if here else GRID_POLL_S)


def wait_for_campaign(
    campaign: CampaignRow, settings: Settings, bars: ProgressFactory = no_progress
) -> TrackingProgress:
    """Collect until every job of a campaign is final, showing how many measurements are done."""
    with (
        Store.open(settings.database) as store,
        bars("Measuring", campaign.planned_measurements) as step,
    ):
        return follow_campaign(
            make_tracker(store, settings),
            campaign,
            lambda p: step(p.finished_measurements, p.describe_jobs()),
        )
