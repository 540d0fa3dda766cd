"""Resumption of campaigns: held jobs are released, interrupted jobs are queued again.

Attempts keep their numbers and the next one gets the next number, so that nothing counts twice.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from treehammer.analysis.status.usability import EVERY_SITE, SiteUses
from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.failures import INTERRUPTED_CLASSES
from treehammer.collectors.shared_files import hold_lock
from treehammer.config import Settings
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.submit.batch.interface import InputReplacement
from treehammer.submit.lifecycle.submission import complete_submission
from treehammer.submit.planning.job_planner import WALL_LIMIT_OVERHEAD_S
from treehammer.submit.planning.site_exclusion import read_uses
from treehammer.submit.reporting.job_reporting import JobReporting
from treehammer.submit.reporting.token_lifetime import TokenRenewal
from treehammer.submit.tracking.excluded_jobs import find_excluded_jobs
from treehammer.submit.tracking.failure_summary import (
    is_from_last_attempt,
    load_last_attempts,
    select_failed_measurements,
)
from treehammer.submit.tracking.load_starts import refuse_resumption
from treehammer.submit.tracking.tracker import CampaignTracker

#: Limit of attempts per job over all resumptions.
MAX_ATTEMPTS_IN_ALL = 9


@dataclass(frozen=True)
class ResumeResult:
    """Numbers of jobs affected by a resumption.

    Attributes:
        released: held jobs that continue.
        requeued: queued again, or for the first time after an interrupted submission.
        exhausted: not queued because they had too many attempts.
        unqueued: not queued because their inputs are gone.
        excluded: site -> reason why its jobs are left as they are.
    """

    released: int
    requeued: int
    exhausted: int
    unqueued: int
    excluded: Mapping[str, str] = field(default_factory=dict)


def resume_campaign(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    settings: Settings,
    *,
    sites: Collection[str] = (),
    failed: bool = False,
    inputs: Mapping[str, Path] | None = None,
    service: JobReporting | None = None,
    include_excluded: Collection[str] = (),
) -> ResumeResult:
    """Release held jobs, queue jobs that no submitter queued, and requeue interrupted ones.

    A second call, concurrent or after a crash, queues nothing twice. Jobs at sites that may not be
    used are left as they are.

    Args:
        tracker: of the store that has the campaign.
        campaign: the campaign.
        settings: all settings.
        sites: restricts the jobs to these sites; default all.
        failed: also requeue jobs whose payload failed.
        inputs: name in the sandbox -> file that replaces the earlier input, e.g. a new proxy.
        service: results service for jobs that reported to it before; None for none.
        include_excluded: sites to use although their state forbids it, or ``all``.

    Raises:
        BatchError: a batch system does not answer or refuses; jobs queued before continue.
        ConfigError: the jobs start together.
    """
    refuse_resumption(campaign)
    with hold_lock(settings.resumptions_dir / campaign.id):
        # Collect the records before the jobs get another batch id.
        tracker.update(campaign)
        tracked = [j for j in tracker.store.jobs(campaign.id) if not sites or j.site in sites]
        uses = SiteUses() if EVERY_SITE in include_excluded else read_uses(tracker.store, settings)
        excluded = find_excluded_jobs(campaign, tracked, uses, include_excluded)
        jobs = [job for job in tracked if job.id not in excluded]
        released = _release_held_jobs(tracker, jobs)
        selected = list(_select_jobs(tracker, campaign, jobs, failed=failed))
        last = load_last_attempts(tracker.store, selected)
        exhausted = [
            j for j in selected if j.id in last and last[j.id].number >= MAX_ATTEMPTS_IN_ALL
        ]
        left = [job for job in selected if job not in exhausted]
        with tempfile.TemporaryDirectory(prefix="treehammer-") as folder:
            walls_s = _wall_limits_s(campaign, left)
            renewal = TokenRenewal(service, Path(folder), campaign.id, walls_s)

            def renew_inputs(job_id: str, sent: Mapping[str, Path]) -> dict[str, Path]:
                return {**renewal(job_id, sent), **(inputs or {})}

            never_queued = [job for job in left if not job.batch_id]
            queued = complete_submission(tracker, campaign, never_queued, settings, renew_inputs)
            requeued = len(queued) + _requeue_jobs(tracker, left, last, renew_inputs)
        reasons = {job.site: excluded[job.id] for job in tracked if job.id in excluded}
        return ResumeResult(released, requeued, len(exhausted), len(left) - requeued, reasons)


def _wall_limits_s(campaign: CampaignRow, jobs: Collection[JobRow]) -> dict[str, float]:
    """Return job id -> wall limit in seconds."""
    limit = float(json.loads(campaign.plan)["definition"]["wall_limit_s"])
    most = max((job.planned_measurements for job in jobs), default=0)
    # Jobs of one submit description share the longest limit.
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
    """Yield ended jobs with missing measurements."""
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
    """Requeue jobs, store their new batch ids and return their number."""
    count = 0
    for name in sorted({job.batch_system for job in jobs}):
        jobs_by_batch_id = {
            job.batch_id: job for job in jobs if job.batch_system == name and job.batch_id
        }
        earlier = {
            old: last[job.id].number if job.id in last else 0
            for old, job in jobs_by_batch_id.items()
        }
        new_ids = tracker.batch_system(name).requeue(earlier, inputs)
        tracker.store.set_jobs(
            replace(jobs_by_batch_id[old], batch_id=new, state=JobState.QUEUED.value)
            for old, new in new_ids.items()
        )
        count += len(new_ids)
    return count
