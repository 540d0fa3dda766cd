"""Circuit breaker for failing sites.

It is applied whenever a campaign is polled: by ``status``, ``collect`` and ``submit --wait``.  Jobs of
the submitting machine are exempt: a test under development may fail there as often as it likes.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

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

#: Start of the message of an attempt that a breaker cancelled.
STOPPED_MESSAGE = "stopped by the breaker"
#: Seconds that running jobs get to end, so that the reason can be stored with them.
CANCEL_WAIT_S = 15.0

_ENDED_STATES = (JobState.DONE.value, JobState.LOST.value)


@dataclass(frozen=True)
class SiteJobs:
    """Jobs of a campaign at one site, with the last attempt of each that has one.

    ``stopped_us`` is when the breaker last stopped the site, 0 for never.  Jobs that ended before
    then do not count: ``resume`` gives the site a new chance.
    """

    site: str
    jobs: tuple[JobRow, ...]
    last: Mapping[str, AttemptRow]
    stopped_us: int

    @property
    def open_jobs(self) -> list[JobRow]:
        """Jobs that have not ended."""
        return [job for job in self.jobs if not JobState(job.state).is_final]

    @property
    def ended_ids(self) -> list[str]:
        """Ids of the jobs that ended by themselves since the site was last stopped."""
        return [
            job.id
            for job in self.jobs
            if job.state in _ENDED_STATES
            and (self.last[job.id].ended_us if job.id in self.last else 0) >= self.stopped_us
        ]

    @property
    def failure_classes(self) -> dict[str, str]:
        """Job id -> failure class of its last attempt, of the jobs that ended by themselves."""
        return {
            job.id: self.last[job.id].failure_class if job.id in self.last else ""
            for job in self.jobs
            if job.state in _ENDED_STATES
        }

    @property
    def stop_messages(self) -> list[str]:
        """Messages of earlier stops that still hold."""
        cancelled = [job.id for job in self.jobs if job.state == JobState.CANCELLED.value]
        messages = {self.last[job].message for job in cancelled if job in self.last}
        return sorted(message for message in messages if message.startswith(STOPPED_MESSAGE))

    def stop_reason(self, breaker: BreakerThreshold, failed: Mapping[str, str]) -> str:
        """Explain why the site has to be stopped now; '' if it does not.

        Args:
            breaker: the campaign's threshold.
            failed: job id -> failure class, of the jobs that failed.
        """
        ended = self.ended_ids
        bad = [job for job in ended if job in failed]
        if not self.open_jobs or not breaker.is_exceeded(len(ended), len(bad), len(self.jobs)):
            return ""
        kinds = Counter(failed[job] for job in bad).most_common()
        classes = ", ".join(f"{count} {kind}" for kind, count in kinds)
        small = breaker.minimum_of(len(self.jobs)) < breaker.minimum
        scope = f" (the site has {len(self.jobs)} jobs)" if small else ""
        return f"{len(bad)} of {len(ended)} jobs failed ({classes}), breaker {breaker}{scope}"


def stop_failing_sites(tracker: CampaignTracker, campaign: CampaignRow) -> list[str]:
    """Cancel the remaining jobs at each site where too many failed.

    The reason is stored with every cancelled job.  Returns a line for each site that is stopped,
    now or by an earlier call.

    Raises:
        BatchError: a batch system does not answer.
    """
    breaker = BreakerThreshold.parse(json.loads(campaign.plan).get("breaker", "off"))
    if breaker is None:
        return []
    sites = _group_by_site(tracker.store, campaign)
    failed = _failed_jobs(tracker.store, campaign, sites)
    lines = []
    for here in sites:
        messages = here.stop_messages
        if reason := here.stop_reason(breaker, failed):
            _cancel_jobs(tracker, campaign, here.open_jobs, reason)
            messages = [f"{STOPPED_MESSAGE}: {reason}"]
        lines += [_format_stop_message(campaign, here.site, message) for message in messages]
    return lines


def _group_by_site(store: Store, campaign: CampaignRow) -> list[SiteJobs]:
    """Group the jobs that this installation follows on other machines by site."""
    jobs: dict[str, list[JobRow]] = defaultdict(list)
    for job in store.jobs(campaign.id):
        if job.batch_system != LOCAL_BATCH and not job.is_external:
            jobs[job.site].append(job)
    site_of = {job.id: site for site, here in jobs.items() for job in here}
    last: dict[str, AttemptRow] = {}
    stopped_us: Counter[str] = Counter()
    for attempt in store.attempts(site_of):  # ordered by number
        last[attempt.job_id] = attempt
        if attempt.message.startswith(STOPPED_MESSAGE):
            site = site_of[attempt.job_id]
            stopped_us[site] = max(stopped_us[site], attempt.ended_us)
    return [SiteJobs(site, tuple(here), last, stopped_us[site]) for site, here in jobs.items()]


def _format_stop_message(campaign: CampaignRow, site: str, message: str) -> str:
    return (
        f"Site {site} was {message}. After the repair: "
        f"treehammer resume {campaign.id} --sites {site}"
    )


def _failed_jobs(store: Store, campaign: CampaignRow, sites: Iterable[SiteJobs]) -> dict[str, str]:
    """Return job id -> failure class of each ended job that failed or lost measurements."""
    found: dict[str, str] = {}
    last: dict[str, AttemptRow] = {}
    for here in sites:
        last |= here.last
        found |= here.failure_classes
    for row in select_failed_measurements(store, campaign, ("job_id", "attempt", *OUTCOME_COLUMNS)):
        job_id = str(row["job_id"])
        # The site is not to blame for a feature that a release lacks.
        failed = classify_outcome(row) is Outcome.FAILED
        if failed and job_id in found and is_from_last_attempt(row, last):
            found[job_id] = found[job_id] or str(row["failure_class"])
    return {job_id: failure for job_id, failure in found.items() if failure}


def _cancel_jobs(
    tracker: CampaignTracker, campaign: CampaignRow, jobs: Collection[JobRow], reason: str
) -> None:
    """Cancel jobs and store the reason with each that ended in time."""
    batch_ids: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        if job.batch_id:
            batch_ids[job.batch_system].append(job.batch_id)
    for name, ids in batch_ids.items():
        tracker.batch_system(name).cancel(ids)
    now = _wait_until_final(tracker, campaign, {job.id for job in jobs})
    cancelled = [job for job in now if job.state == JobState.CANCELLED.value]
    attempts = load_last_attempts(tracker.store, cancelled)
    tracker.store.set_attempts(
        _make_stopped_attempt(job, attempts.get(job.id), reason) for job in cancelled
    )


def _wait_until_final(
    tracker: CampaignTracker, campaign: CampaignRow, job_ids: Collection[str]
) -> list[JobRow]:
    """Refresh jobs until all are final, or :data:`CANCEL_WAIT_S` seconds have passed."""
    deadline = time.monotonic() + CANCEL_WAIT_S
    while True:
        jobs = [job for job in tracker.refresh_jobs(campaign) if job.id in job_ids]
        if all(JobState(job.state).is_final for job in jobs) or time.monotonic() > deadline:
            return jobs
        time.sleep(1.0)


def _make_stopped_attempt(job: JobRow, last: AttemptRow | None, reason: str) -> AttemptRow:
    """Return the last attempt of a cancelled job with the reason; a new one if it never started."""
    state, now_us = JobState.CANCELLED.value, time.time_ns() // 1000
    if last is None or last.state != state:
        number = last.number + 1 if last else 1
        last = AttemptRow(job.id, number, state, 0, now_us, None, "", "")
    return replace(last, ended_us=last.ended_us or now_us, message=f"{STOPPED_MESSAGE}: {reason}")
