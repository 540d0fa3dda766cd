"""Going on with a campaign: held jobs are released, jobs that were cut off are queued anew.

Every attempt so far is kept, and the next has the next number, so that nothing is counted twice.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from treehammer.collectors.job_state import JobState
from treehammer.collectors.shared_files import hold_lock
from treehammer.config import Settings
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.submit.batch.interface import InputReplacement
from treehammer.submit.planning.job_planner import WALL_LIMIT_OVERHEAD_S
from treehammer.submit.reporting.job_reporting import JobReporting
from treehammer.submit.reporting.token_lifetime import TokenRenewal
from treehammer.submit.tracking.failure_summary import (
    is_from_last_attempt,
    load_last_attempts,
    select_failed_measurements,
)
from treehammer.submit.tracking.tracker import CampaignTracker

#: A job that has had so many attempts is not queued anew.
MAX_ATTEMPTS_IN_ALL = 9
#: Classes of failures that came from where a job ran, not from what it did.
INTERRUPTED_CLASSES = ("submission", "held", "evicted", "upload", "lost")


@dataclass(frozen=True)
class ResumeResult:
    """What a resumption did, in jobs.

    Attributes:
        released: held, and let go on.
        again: queued anew.
        spent: had too many attempts already.
        unqueued: never came to a batch system that could queue them anew.
    """

    released: int
    requeued: int
    exhausted: int
    unqueued: int


def resume_campaign(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    settings: Settings,
    *,
    sites: Collection[str] = (),
    failed: bool = False,
    inputs: Mapping[str, Path] | None = None,
    service: JobReporting | None = None,
) -> ResumeResult:
    """Release held jobs and queue those anew that ended without all their measurements.

    Who does so twice at once, or again after being killed, queues nothing twice.

    Args:
        tracker: of the store that has the campaign.
        campaign: which.
        settings: all settings.
        sites: only jobs of these; by default of all.
        failed: also jobs whose payload failed.
        inputs: name in the sandbox -> file in place of what was sent before, e.g. a new proxy.
        service: the results service that the jobs report to, if they did before; None for none.

    Raises:
        BatchError: a batch system does not answer or refuses; what it took before goes on.
    """
    with hold_lock(settings.resumptions_dir / campaign.id):
        # Their records must be in before the jobs are known under another batch id.
        tracker.update(campaign)
        jobs = [j for j in tracker.store.jobs(campaign.id) if not sites or j.site in sites]
        released = _release_held_jobs(tracker, jobs)
        wanted = list(_select_jobs(tracker, campaign, jobs, failed=failed))
        last = load_last_attempts(tracker.store, wanted)
        spent = [j for j in wanted if j.id in last and last[j.id].number >= MAX_ATTEMPTS_IN_ALL]
        left = [job for job in wanted if job not in spent]
        with tempfile.TemporaryDirectory(prefix="treehammer-") as folder:
            walls_s = _wall_limits_s(campaign, left)
            renewal = TokenRenewal(service, Path(folder), campaign.id, walls_s)
            again = _requeue_jobs(
                tracker, left, last, lambda job, sent: {**renewal(job, sent), **(inputs or {})}
            )
        return ResumeResult(released, again, len(spent), len(left) - again)


def _wall_limits_s(campaign: CampaignRow, jobs: Collection[JobRow]) -> dict[str, float]:
    """Job id -> seconds after which its batch system ends it."""
    limit = float(json.loads(campaign.plan)["definition"]["wall_limit_s"])
    most = max((job.planned_measurements for job in jobs), default=0)
    # Jobs that share a description share the longest limit.
    return {job.id: most * (limit + WALL_LIMIT_OVERHEAD_S) for job in jobs}


def _release_held_jobs(tracker: CampaignTracker, jobs: Collection[JobRow]) -> int:
    held: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        if job.state == JobState.HELD.value:
            held[job.batch_system].append(job.batch_id)
    return sum(tracker.batch_system(name).release(ids) for name, ids in held.items())


def _select_jobs(
    tracker: CampaignTracker, campaign: CampaignRow, jobs: Collection[JobRow], *, failed: bool
) -> Iterator[JobRow]:
    """The jobs that are over and did not bring what they should."""
    last = load_last_attempts(tracker.store, jobs)
    bad: set[str] = set()
    if failed:
        rows = select_failed_measurements(tracker.store, campaign, ("job_id", "attempt"))
        bad = {str(row["job_id"]) for row in rows if is_from_last_attempt(row, last)}
    for job in jobs:
        if job.state in (JobState.CANCELLED.value, JobState.LOST.value):
            yield job
        elif job.state == JobState.DONE.value:
            attempt = last.get(job.id)
            if job.id in bad or (attempt and attempt.failure_class in INTERRUPTED_CLASSES):
                yield job


def _requeue_jobs(
    tracker: CampaignTracker,
    jobs: Collection[JobRow],
    last: Mapping[str, AttemptRow],
    inputs: InputReplacement,
) -> int:
    """Queue jobs anew and remember where; how many could be."""
    count = 0
    for name in sorted({job.batch_system for job in jobs}):
        here = {job.batch_id: job for job in jobs if job.batch_system == name and job.batch_id}
        earlier = {old: last[job.id].number if job.id in last else 0 for old, job in here.items()}
        found = tracker.batch_system(name).requeue(earlier, inputs)
        tracker.store.set_jobs(
            replace(here[old], batch_id=new, state=JobState.QUEUED.value)
            for old, new in found.items()
        )
        count += len(found)
    return count
