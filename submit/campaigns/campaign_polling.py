"""Polling of submitted campaigns until all jobs have ended. Imports no planning code.

Queued jobs at sites that became excluded are removed, held back, or left alone.  This happens
whenever a campaign is polled: by ``status``, ``collect``, ``submit --wait`` and patrol.  Jobs that run
go on, because their results show how the site does.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from treehammer.collectors.job_spec import LOCAL_BATCH, JobState
from treehammer.collectors.record.day_numbers import DAY_US, current_us
from treehammer.config import HOLD_JOBS, KEEP_JOBS, Settings
from treehammer.errors import TreehammerError
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.read.campaign_counts import EXCLUDED_MESSAGE, CampaignCount, load_last_attempts
from treehammer.sql.write.store import Store
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.submit.campaigns.attempt_rows import REJECTED_FOLDER
from treehammer.submit.campaigns.campaign_outcome import describe_running_loads
from treehammer.submit.campaigns.campaign_upload import CampaignUploader
from treehammer.submit.campaigns.tracker import (
    CampaignTracker,
    StagedSubmissions,
    describe_unqueued_jobs,
    group_by_batch_system,
    may_change,
)
from treehammer.submit.campaigns.waiting_campaigns import OwnCampaigns
from treehammer.submit.sites.site_registry import open_batch_system
from treehammer.text_formatting import ProgressFactory, pluralize

if TYPE_CHECKING:
    from treehammer.analysis.status.site_uses import SiteUses


#: Seconds between two polls of local jobs; polling takes CPU time from the measurements.  A job that
#: starts or ends is seen at once.
LOCAL_POLL_S = 2.0
#: Seconds between two polls of a shared batch system.
GRID_POLL_S = 5.0
#: Seconds without a change after which the reasons are looked for.
STANDSTILL_S = 60.0

#: Receives a line for the user.
Notify = Callable[[str], None]
#: Receives the progress of a campaign.
ShowProgress = Callable[[CampaignCount], None]
#: Seconds that removed jobs get to end, so that the reason can be stored with them.
REMOVAL_WAIT_S = 5.0
_WAITING_STATES = (JobState.QUEUED.value, JobState.HELD.value)


@dataclass(frozen=True)
class CampaignDisplay:
    """Output of a command that follows a campaign: its progress while a block runs, notices, phases."""

    open: Callable[[CampaignRow], AbstractContextManager[ShowProgress]]
    notify: Notify
    phase: Notify


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


def make_tracker(
    store: Store, settings: Settings, guard: ExclusionGuard | None = None
) -> CampaignTracker:
    """Make a tracker for the campaigns in a store; trackers may share a guard."""
    return CampaignTracker(
        store,
        cache(lambda name: open_batch_system(name, settings)),  # called for every job
        under_way=StagedSubmissions(settings.submissions_dir).is_under_way,
        upload=CampaignUploader(settings).upload,
        guard=(guard or ExclusionGuard(settings)).apply,
    )


def poll_campaign(tracker: CampaignTracker, campaign: CampaignRow, notify: Notify) -> CampaignCount:
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
    for line in (*excluded, *tracker.upload_campaign(campaign)):
        notify(line)
    return tracker.compute_progress(campaign) if excluded else progress


def list_campaigns(tracker: CampaignTracker) -> tuple[list[dict[str, Any]], list[str]]:
    """Bring all campaigns up to date; list their rows, and lines on problems of any of them."""
    rows, remarks = [], []
    for campaign in tracker.store.campaigns():
        try:
            if any(map(may_change, tracker.store.jobs(campaign.id))):
                tracker.update(campaign)
        except TreehammerError as error:  # show the other campaigns
            remarks.append(f"{campaign.id} may have changed since the last status: {error}")
        remarks += tracker.upload_campaign(campaign)
        total = tracker.compute_progress(campaign).total
        rows.append(
            {
                "id": campaign.id,
                "name": campaign.name,
                "jobs": {s.value: total.jobs[s.value] for s in JobState if total.jobs[s.value]},
                "planned": campaign.planned_measurements,
                "collected": total.measured,
                "failed": total.failed,
                "implausible": total.implausible,
            }
        )
    return rows, remarks


def follow_campaign(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    show: ShowProgress,
    notify: Notify = lambda _line: None,
) -> CampaignCount:
    """Poll until every job has ended; each message is passed to ``notify`` once."""
    notify_once = cache(notify)
    is_local = all(job.batch_system == LOCAL_BATCH for job in tracker.store.jobs(campaign.id))
    batch = tracker.batch_system(LOCAL_BATCH) if is_local else None
    local = batch if isinstance(batch, LocalBatch) else None
    is_load = campaign.plan.definition.load_test is not None
    last, last_load, changed_s = "", "", time.monotonic()
    while True:
        # Before the poll, so that no change between both is missed.
        changes = local.count_changes() if local else 0
        progress = poll_campaign(tracker, campaign, notify_once)
        show(progress)
        load = describe_running_loads(tracker.read_load_steps(campaign)) if is_load else ""
        if load not in ("", last_load):
            notify(f"load: {load}")
        last_load = load
        state = f"{progress.total.outstanding} {progress.total.describe_jobs()}"
        if state != last:
            last, changed_s = state, time.monotonic()
        elif time.monotonic() - changed_s > _find_patience_s(progress, is_local=local is not None):
            changed_s = time.monotonic()
            for line in tracker.describe_obstacles(campaign):
                notify_once(line)
        if progress.is_finished:
            for line in tracker.upload_campaign(campaign, everything=True):
                notify_once(line)
            return progress
        if local is not None:
            local.wait_for_change(changes, LOCAL_POLL_S)
        else:
            time.sleep(GRID_POLL_S)


def _find_patience_s(progress: CampaignCount, *, is_local: bool) -> float:
    """Return the seconds without a change after which the reasons are looked for."""
    if not is_local:
        return STANDSTILL_S
    # To look takes CPU time from running measurements.
    return math.inf if progress.total.jobs[JobState.RUNNING.value] else LOCAL_POLL_S


def wait_for_campaign(
    campaign: CampaignRow, settings: Settings, bars: ProgressFactory
) -> CampaignCount:
    """Collect until every job of a campaign has ended, with a progress bar."""
    with (
        Store.open(settings.database) as store,
        bars("Measuring", campaign.planned_measurements) as step,
    ):

        def show(progress: CampaignCount) -> None:
            total = progress.total
            step(total.planned - total.outstanding, total.describe_jobs())

        return follow_campaign(make_tracker(store, settings), campaign, show)


class ExclusionGuard:
    """Applies the states of sites to the queued jobs of campaigns.

    Args:
        settings: all settings.
        uses_age_s: seconds for which the uses of sites hold, for many campaigns in turn.
    """

    def __init__(self, settings: Settings, uses_age_s: float = 0.0) -> None:
        self._action = settings.excluded_jobs
        self._rules_file = settings.status_rules
        self._uses_age_us = round(uses_age_s * 1e6)
        self._uses: tuple[int, SiteUses] | None = None

    def apply(self, tracker: CampaignTracker, campaign: CampaignRow) -> list[str]:
        """Evaluate the states of sites if it is time, and act on the campaign's queued jobs.

        Returns:
            A line for each site whose jobs were removed, held back or released, now or before.

        Raises:
            BatchError: a batch system does not answer.
        """
        # Those that this installation submitted to other queues than its own.
        stored_jobs = tracker.store.jobs(campaign.id)
        jobs = [j for j in stored_jobs if j.batch_system != LOCAL_BATCH and not j.is_external]
        if self._action == KEEP_JOBS or not jobs:
            return []
        # A resumption by another process may have included sites meanwhile.
        row = tracker.store.campaign(campaign.id)
        reasons = find_excluded_jobs(row, jobs, self._refresh_uses(tracker, jobs))
        queued = [job for job in jobs if job.state in _WAITING_STATES and job.batch_id]
        if queued and tracker.is_foreign(campaign, {job.batch_system for job in queued}):
            return []
        excluded = [job for job in queued if job.id in reasons]
        released = _release_jobs(tracker, queued, reasons)
        held_jobs = _hold_jobs(tracker, excluded, reasons)
        if self._action == HOLD_JOBS:
            return [*released, *held_jobs]
        _remove_jobs(tracker, campaign, excluded, reasons)
        return [*released, *_describe_removed(tracker, campaign, jobs)]

    def _refresh_uses(self, tracker: CampaignTracker, jobs: Collection[JobRow]) -> SiteUses:
        """Evaluate the states of sites if it is time."""
        now_us = tracker.now_us()
        if self._uses and now_us < self._uses[0] + self._uses_age_us:
            return self._uses[1]
        from treehammer.analysis.status.site_uses import refresh_uses

        is_open = any(not JobState(job.state).is_final for job in jobs)
        uses = refresh_uses(tracker.store, self._rules_file, now_us, always=is_open)
        self._uses = now_us, uses
        return uses


def find_excluded_jobs(
    campaign: CampaignRow, jobs: Collection[JobRow], uses: SiteUses, include: Collection[str] = ()
) -> dict[str, str]:
    """Return job id -> reason, of the jobs that may not start by the states of sites.

    Args:
        campaign: the campaign, whose plan may include excluded sites.
        jobs: some of its jobs.
        uses: uses of sites by their states.
        include: further sites to use although their state forbids it.
    """
    included = {*include, *campaign.plan.included}
    return {job.id: reason for job in jobs if (reason := describe_exclusion(job, uses, included))}


def describe_exclusion(job: JobRow, uses: SiteUses, included: Collection[str] = ()) -> str:
    """Say why a job may not start by the states of its site, and of the storage and door it reads.

    Args:
        job: the job.
        uses: uses of sites and doors by their states.
        included: sites, and labels of doors, that are used nevertheless.
    """
    from treehammer.sql.core import subjects

    if job.site in included:
        return ""
    storage, door = subjects.split_door_label(job.door)
    if door:
        parts = (job.site, (subjects.SITE,)), (storage, (subjects.STORAGE_SITE,))
        reasons = [uses.describe_restrictions(*part) for part in parts if part[0] not in included]
    else:
        storage, door = job.site, job.door
        reasons = [uses.describe_restrictions(job.site, subjects.SUBJECT_KINDS)]
    if not {storage, subjects.label_door(storage, door)} & {*included}:
        reason = uses.describe_door(storage, door)
        reasons.append(f"door {door} {reason}" if reason else "")
    return "; ".join(filter(None, reasons))


def _release_jobs(
    tracker: CampaignTracker, jobs: Collection[JobRow], reasons: Mapping[str, str]
) -> list[str]:
    """Release waiting jobs of sites that are usable again."""
    usable = [job for job in jobs if job.id not in reasons]
    are_released = [
        tracker.batch_system(name).release_held([job.batch_id for job in group], EXCLUDED_MESSAGE)
        for name, group in group_by_batch_system(usable)
    ]
    line = "Held jobs of sites that are usable again were released"
    return [line] if any(are_released) else []


def _hold_jobs(
    tracker: CampaignTracker, jobs: Collection[JobRow], reasons: Mapping[str, str]
) -> list[str]:
    """Hold waiting jobs of excluded sites."""
    lines: list[str] = []
    for site, cause in sorted({(job.site, reasons[job.id]) for job in jobs}):
        site_jobs = [job for job in jobs if (job.site, reasons[job.id]) == (site, cause)]
        reason = f"{EXCLUDED_MESSAGE}: {cause}"
        for name, group in group_by_batch_system(site_jobs):
            tracker.batch_system(name).hold([job.batch_id for job in group], reason)
        lines.append(f"Site {site}: {pluralize(len(site_jobs), 'queued job')} held back, {reason}")
    return lines


def _remove_jobs(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    jobs: Collection[JobRow],
    reasons: Mapping[str, str],
) -> None:
    """Remove held jobs of excluded sites, and store the reason with each that ended in time.

    Those that HTCondor has not materialized stay held until the running ones of their cluster end.
    """
    if not jobs:
        return
    for name, group in group_by_batch_system(jobs):
        tracker.batch_system(name).cancel([job.batch_id for job in group])
    now = _wait_until_final(tracker, campaign, {job.id for job in jobs})
    cancelled = [job for job in now if job.state == JobState.CANCELLED.value]
    last = load_last_attempts(tracker.store, cancelled)
    tracker.store.set_attempts(
        [_make_removed_attempt(job, last.get(job.id), reasons[job.id]) for job in cancelled]
    )


def _wait_until_final(
    tracker: CampaignTracker, campaign: CampaignRow, job_ids: Collection[str]
) -> list[JobRow]:
    """Refresh jobs until all are final, or :data:`REMOVAL_WAIT_S` seconds have passed."""
    deadline = time.monotonic() + REMOVAL_WAIT_S
    while True:
        jobs = [job for job in tracker.refresh_jobs(campaign) if job.id in job_ids]
        if all(JobState(job.state).is_final for job in jobs) or time.monotonic() > deadline:
            return jobs
        time.sleep(1.0)


def _make_removed_attempt(job: JobRow, last: AttemptRow | None, reason: str) -> AttemptRow:
    """Return the last attempt of a removed job with the reason; a new one if it never started."""
    state, now_us = JobState.CANCELLED.value, current_us()
    if last is None or last.state != state:
        number = last.number + 1 if last else 1
        last = AttemptRow(job.id, number, state, 0, now_us, None, "", "")
    return replace(last, ended_us=last.ended_us or now_us, message=f"{EXCLUDED_MESSAGE}: {reason}")


def _describe_removed(
    tracker: CampaignTracker, campaign: CampaignRow, jobs: Collection[JobRow]
) -> list[str]:
    """Describe the removed jobs of each site, and how they continue."""
    tracked = {job.id for job in jobs}
    stored = [job for job in tracker.store.jobs(campaign.id) if job.id in tracked]
    cancelled = {job.id: job for job in stored if job.state == JobState.CANCELLED.value}
    messages: defaultdict[str, list[str]] = defaultdict(list)
    for job_id, attempt in load_last_attempts(tracker.store, cancelled.values()).items():
        if attempt.message.startswith(EXCLUDED_MESSAGE):
            messages[cancelled[job_id].site].append(attempt.message)
    return [
        f"Site {site}: {pluralize(len(site_messages), 'queued job')} removed, {site_messages[-1]}. When it is usable "
        f"again: treehammer resume {campaign.id} --sites {site}"
        for site, site_messages in sorted(messages.items())
    ]


def campaigns_older_than(
    tracker: CampaignTracker, settings: Settings, days: float
) -> Iterator[CampaignRow]:
    """Yield campaigns of that age whose folders are no longer needed."""
    limit = current_us() - days * DAY_US
    stored_campaigns = list_stored_campaigns(settings)
    for row in tracker.store.campaigns():
        is_old = row.id in stored_campaigns and row.created_us <= limit
        if is_old and not retention_reason(tracker, row):
            yield row


def list_stored_campaigns(settings: Settings) -> set[str]:
    """List the campaigns with folders on this machine; purged ones cost nothing then."""
    staged = (path.name for path in settings.submissions_dir.glob("*"))
    return {*staged, *OwnCampaigns(settings).list_all()}


def retention_reason(tracker: CampaignTracker, campaign: CampaignRow) -> str:
    """Collect the campaign, then explain why its folders are still needed; '' if they are not."""
    collected = tracker.collect_records(campaign)
    jobs = tracker.store.jobs(campaign.id)
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
    for name, group in group_by_batch_system(jobs):
        if batch := tracker.find_batch_system(name, jobs):
            freed += batch.purge([job.batch_id for job in group if job.batch_id])
    return freed
