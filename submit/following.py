"""From a submission to its results: looking, following, waiting; needs nothing that plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from treehammer.config import Settings
from treehammer.sql.rows import CampaignRow
from treehammer.sql.store import Store
from treehammer.submit import breaker
from treehammer.submit.batch.base import JobState
from treehammer.submit.batch.local import LocalBatch
from treehammer.submit.handing_in import HandingIn
from treehammer.submit.sites import batch_system
from treehammer.submit.submissions import Submissions
from treehammer.submit.tracking import Progress, Tracker
from treehammer.terminal import Bars, silent

#: Seconds between two looks while waiting: the jobs measure meanwhile, and looking costs time.
POLL_S = 2.0
#: The same where others are asked, who have more to do than to answer us.
GRID_POLL_S = 5.0

#: Receives a line for the user.
Say = Callable[[str], None]


def _unheard(line: str) -> None:
    """What programs do that need no lines."""


def how_it_stands(tracker: Tracker, campaign: CampaignRow) -> str:
    """What a user who stops watching is told."""
    jobs = tracker.refresh(campaign)
    if not any(job.batch_id for job in jobs):
        return f"none of the jobs of {campaign.id} was submitted. Submit again"
    if all(JobState(job.state).final for job in jobs):
        return f"every job is over. Take in what they measured: treehammer collect {campaign.id}"
    return (
        f"the jobs go on. Look: treehammer status {campaign.id}. "
        f"End them: treehammer cancel {campaign.id}"
    )


def tracker_for(store: Store, settings: Settings) -> Tracker:
    """A tracker of the campaigns in a store."""
    return Tracker(
        store,
        cache(lambda name: batch_system(name, settings)),  # asked for once a job
        under_way=Submissions(settings.submissions_dir).under_way,
        tell=HandingIn(settings).tell,
    )


def look(tracker: Tracker, campaign: CampaignRow, say: Say = _unheard) -> Progress:
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
    progress = tracker.look(campaign)
    stopped = breaker.apply(tracker, campaign)
    for line in [*stopped, *tracker.hand_in(campaign)]:
        say(line)
    return tracker.progress(campaign) if stopped else progress


def follow(
    tracker: Tracker,
    campaign: CampaignRow,
    show: Callable[[Progress], None],
    say: Say = _unheard,
) -> Progress:
    """Look and collect again and again until every job is final; each line is said once."""
    said: set[str] = set()

    def once(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    jobs = tracker.store.jobs(campaign.id)
    here = all(job.batch_system == LocalBatch.name for job in jobs)
    while True:
        progress = look(tracker, campaign, once)
        show(progress)
        if progress.finished:
            for line in tracker.hand_in(campaign, everything=True):
                once(line)
            return progress
        time.sleep(POLL_S if here else GRID_POLL_S)


def wait(campaign: CampaignRow, settings: Settings, bars: Bars = silent) -> Progress:
    """Collect until every job of a campaign is final, showing how many measurements are done."""
    with (
        Store.open(settings.database) as store,
        bars("Measuring", campaign.planned_measurements) as step,
    ):
        return follow(tracker_for(store, settings), campaign, lambda p: step(p.done, p.note()))
