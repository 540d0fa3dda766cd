"""The circuit breaker: a site at which too many jobs fail is given no more of them.

It acts whenever somebody looks: ``status``, ``collect``, ``submit --wait``.  This machine has none: it
is its user's own, and a test that is being written may fail as often as it likes.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.planning.pacing import BreakerThreshold
from treehammer.submit.tracking.failure_summary import (
    is_from_last_attempt,
    load_last_attempts,
    select_failed_measurements,
)
from treehammer.submit.tracking.tracker import CampaignTracker

#: What the attempts begin their message with that a breaker ended, or did not let begin.
STOPPED_MESSAGE = "stopped by the breaker"
#: Seconds that running jobs are given to end, so that why they did can be stored with them.
CANCEL_WAIT_S = 15.0

_ENDED_STATES = (JobState.DONE.value, JobState.LOST.value)


def stop_failing_sites(tracker: CampaignTracker, campaign: CampaignRow) -> list[str]:
    """Cancel what is left at each site where too many jobs failed.

    Why is stored with every job that was cancelled.  Returns a line for each site that was stopped
    now or earlier.

    Raises:
        BatchError: a batch system does not answer.
    """
    breaker = BreakerThreshold.parse(json.loads(campaign.plan).get("breaker", "off"))
    if breaker is None:
        return []
    known = tracker.store.jobs(campaign.id)
    jobs = [job for job in known if job.batch_system != LOCAL_BATCH and not job.is_external]
    attempts = tracker.store.attempts(job.id for job in jobs)
    last = {attempt.job_id: attempt for attempt in attempts}
    failed = _failed_jobs(tracker.store, campaign, jobs, last)
    # What failed before a site was stopped counts no more once it goes on.
    stopped_us: dict[str, int] = {}
    sites = {job.id: job.site for job in jobs}
    for attempt in attempts:
        if attempt.message.startswith(STOPPED_MESSAGE):
            site = sites[attempt.job_id]
            stopped_us[site] = max(stopped_us.get(site, 0), attempt.ended_us)
    said = []
    for site in dict.fromkeys(sites.values()):
        here = [job for job in jobs if job.site == site]
        left = [job for job in here if not JobState(job.state).is_final]
        since_us = stopped_us.get(site, 0)
        ended = [
            j.id for j in here if j.state in _ENDED_STATES and _job_end_us(last, j) >= since_us
        ]
        reason = _stop_reason(breaker, ended, failed) if left else ""
        if reason:
            _cancel_jobs(tracker, campaign, left, reason)
            said.append(_format_stop_message(campaign, site, f"{STOPPED_MESSAGE}: {reason}"))
        else:
            # Told again to whoever looks later.
            over = [job.id for job in here if job.state == JobState.CANCELLED.value]
            messages = {last[job].message for job in over if job in last}
            stopped = sorted(message for message in messages if message.startswith(STOPPED_MESSAGE))
            said += [_format_stop_message(campaign, site, message) for message in stopped]
    return said


def _format_stop_message(campaign: CampaignRow, site: str, message: str) -> str:
    return (
        f"Site {site} was {message}. Once that is repaired: "
        f"treehammer resume {campaign.id} --sites {site}"
    )


def _failed_jobs(
    store: Store,
    campaign: CampaignRow,
    jobs: Iterable[JobRow],
    attempts: Mapping[str, AttemptRow],
) -> dict[str, str]:
    """Class of failure of each job that ended and did not bring all it should."""
    ended = {job.id for job in jobs if job.state in _ENDED_STATES}
    found = {job: attempts[job].failure_class for job in ended if job in attempts}
    for row in select_failed_measurements(store, campaign, ("job_id", "attempt", *OUTCOME_COLUMNS)):
        job = str(row["job_id"])
        # What a release cannot do is no fault of the site.
        counts = classify_outcome(row) is Outcome.FAILED
        if counts and job in ended and is_from_last_attempt(row, attempts):
            found[job] = found.get(job) or str(row["failure_class"])
    return {job: kind for job, kind in found.items() if kind}


def _job_end_us(last: Mapping[str, AttemptRow], job: JobRow) -> int:
    return last[job.id].ended_us if job.id in last else 0


def _stop_reason(
    breaker: BreakerThreshold, ended: Collection[str], failed: Mapping[str, str]
) -> str:
    """Why a site is stopped whose jobs ended so; '' when it is not."""
    bad = [job for job in ended if job in failed]
    if not breaker.is_exceeded(len(ended), len(bad)):
        return ""
    kinds = Counter(failed[job] for job in bad).most_common()
    classes = ", ".join(f"{count} {kind}" for kind, count in kinds)
    return f"{len(bad)} of {len(ended)} jobs failed ({classes}), breaker {breaker}"


def _cancel_jobs(
    tracker: CampaignTracker, campaign: CampaignRow, jobs: Collection[JobRow], reason: str
) -> None:
    """Cancel jobs, and store why with each that is over then."""
    names = {job.id: job.batch_system for job in jobs}
    batch_ids: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        if job.batch_id:
            batch_ids[job.batch_system].append(job.batch_id)
    for name, ids in batch_ids.items():
        tracker.batch_system(name).cancel(ids)
    deadline = time.monotonic() + CANCEL_WAIT_S
    while True:
        now = [job for job in tracker.refresh_jobs(campaign) if job.id in names]
        if all(JobState(job.state).is_final for job in now) or time.monotonic() > deadline:
            break
        time.sleep(1.0)
    over = [job for job in now if job.state == JobState.CANCELLED.value]
    attempts = load_last_attempts(tracker.store, over)
    tracker.store.set_attempts(
        _make_stopped_attempt(job, attempts.get(job.id), reason) for job in over
    )


def _make_stopped_attempt(job: JobRow, last: AttemptRow | None, reason: str) -> AttemptRow:
    """The last attempt of a cancelled job; one that never began stands for a job without."""
    state, now_us = JobState.CANCELLED.value, time.time_ns() // 1000
    if last is None or last.state != state:
        number = last.number + 1 if last else 1
        last = AttemptRow(job.id, number, state, 0, now_us, None, "", "")
    return replace(last, ended_us=last.ended_us or now_us, message=f"{STOPPED_MESSAGE}: {reason}")
