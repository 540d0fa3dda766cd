"""Submission and resumption of campaigns.

On resumption, held jobs are released and interrupted jobs are queued again.  Attempts keep their
numbers and the next one gets the next number, so that nothing counts twice.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from sqlalchemy.engine import Connection

from treehammer.analysis.status.site_uses import EVERY_SITE
from treehammer.collectors.job_spec import LOCAL_BATCH, LOOPS_FOLDER, JobState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.shared_files import hold_lock
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, NothingToDoError
from treehammer.sql.core.campaign_plan import PlannedCost
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.core.subjects import split_door_label
from treehammer.sql.read.campaign_counts import EXCLUDED_MESSAGE, load_last_attempts
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import BatchSystem, InputReplacement, JobDescription
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.submit.campaigns.attempt_rows import make_lost_job
from treehammer.submit.campaigns.campaign_outcome import (
    is_from_last_attempt,
    refuse_resumption,
    select_failed_measurements,
)
from treehammer.submit.campaigns.campaign_polling import (
    describe_campaign_state,
    find_excluded_jobs,
    make_tracker,
)
from treehammer.submit.campaigns.campaign_upload import CampaignUploader
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.campaigns.job_reporting import (
    JobReporting,
    make_token_renewal,
    reporting_for_submission,
)
from treehammer.submit.campaigns.tracker import (
    CampaignTracker,
    StagedSubmission,
    StagedSubmissions,
    group_by_batch_system,
)
from treehammer.submit.planning import cost_estimate, submission_options
from treehammer.submit.planning.job_planner import WALL_LIMIT_OVERHEAD_S
from treehammer.submit.planning.plan import Plan, PlanReview, sum_costs
from treehammer.submit.planning.site_selection import read_uses
from treehammer.submit.sites.site_registry import open_batch_system
from treehammer.text_formatting import pluralize

#: Limit of attempts per job over all resumptions.
MAX_ATTEMPTS_IN_ALL = 9


def check_plan_limits(plan: Plan, settings: Settings) -> PlanReview:
    """Refuse a plan that exceeds a ceiling or a permitted load, or outlives its credentials.

    Returns its review, with its costs.

    Raises:
        ConfigError: the plan is above a limit, or a credential cannot be used.
    """
    review = cost_estimate.find_review(plan, settings)
    review.refuse_broken_rules(plan.campaign_name)
    duration_s = cost_estimate.estimate_campaign_seconds(plan, review.costs)
    now = time.time()
    of_sites = (submission_options.site_credentials(site.submit) for site in plan.sites)
    for credentials in (plan.options.credentials, *of_sites):
        credentials.check_validity(now, None if duration_s is None else now + duration_s)
    return review


def try_submission(plan: Plan, settings: Settings) -> None:
    """Raise the errors of a submission that are known before it: of limits and of templates."""
    check_plan_limits(plan, settings)
    with tempfile.TemporaryDirectory(prefix="treehammer-") as folder:
        jobs = {job.site.name: job for job in plan.jobs}.values()
        [*render_jobs(plan, Path(folder), jobs)]


def submit_plan(
    plan: Plan, settings: Settings, permit: Callable[[Connection], None] | None = None
) -> CampaignRow:
    """Stage all jobs, store the campaign, then queue its jobs.

    In this order every running job is in the store, whenever this process is killed, and the others
    can be queued: by the same plan again, or by :func:`complete_submission`.

    Args:
        plan: the plan.
        settings: all settings.
        permit: condition on which the campaign may be stored, see :meth:`.Store.add_campaign`.

    Raises:
        ConfigError: the plan exceeds a ceiling, a credential expires too early, or the key for the
            results service is missing; nothing was submitted.
        BatchError: a batch system failed; the jobs that it did not take are stored as lost.
        TreehammerError: the store or a template is invalid; nothing was submitted.
    """
    review = check_plan_limits(plan, settings)
    campaign = record_estimate(plan.make_campaign_row(), review)

    def add_campaign(store: Store, rows: list[JobRow], service: JobReporting | None) -> None:
        if service is not None:
            CampaignUploader(settings).register_campaign(plan.campaign_id)
        # Fetching software may have taken an hour: the submission starts now.
        store.add_campaign(
            replace(campaign, created_us=current_us()),
            rows,
            permit,
            key_id=service.key.key_id if service and service.key else "",
        )

    return _store_and_queue(plan, settings, add_campaign)


def record_estimate(campaign: CampaignRow, review: PlanReview) -> CampaignRow:
    """Add the estimated cost to the stored plan, so that it can be compared with the cost later."""
    total = sum_costs(review.costs)
    estimate = PlannedCost(**{name: total[name] for name in PlannedCost.model_fields})
    return replace(campaign, plan=campaign.plan.replace(estimate=estimate))


def extend_submission(plan: Plan, settings: Settings) -> CampaignRow:
    """Add the jobs of a plan to its campaign, which was submitted with other jobs, and queue them.

    Raises:
        BatchError: a batch system failed; the jobs that it did not take are stored as lost.
        TreehammerError: the store or a template is invalid; nothing was submitted.
    """
    return _store_and_queue(
        plan, settings, lambda store, rows, _: store.extend_campaign(plan.campaign_id, rows)
    )


def _store_and_queue(
    plan: Plan,
    settings: Settings,
    add: Callable[[Store, list[JobRow], JobReporting | None], None],
) -> CampaignRow:
    """Stage the jobs of a plan, add them to the store, and queue them."""
    service = reporting_for_submission(settings, plan.options)
    rows = list(plan.make_job_rows())
    if any(row.batch_system == LOCAL_BATCH for row in rows):
        with suppress(BatchError):  # queueing the jobs reports it
            LocalBatch(settings.spool_dir).prepare()
    with (
        Store.open(settings.database) as store,
        StagedSubmissions(settings.submissions_dir).hold(plan.campaign_id) as staged,
    ):
        jobs = render_jobs(
            plan,
            staged.rendered,
            service=service,
            slots=settings.local_slots,
            loops=settings.software_dir / LOOPS_FOLDER,
        )
        staged.write(jobs)
        add(store, rows, service)
        _queue_jobs(store, functools.partial(open_batch_system, settings=settings), staged, rows)
        staged.remove()
        return store.campaign(plan.campaign_id)


def complete_submission(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    jobs: Iterable[JobRow],
    settings: Settings,
    inputs: InputReplacement,
) -> list[JobRow]:
    """Queue jobs of a campaign that their submitter left, and return them.

    Args:
        tracker: of the store that has the campaign.
        campaign: the campaign.
        jobs: selected jobs of it; those with a batch id are queued already.
        settings: all settings.
        inputs: gives the new inputs of a job.

    Raises:
        BatchError: a batch system failed; another call queues the others.
    """
    submissions = StagedSubmissions(settings.submissions_dir)
    if not submissions.is_resumable(campaign.id) or submissions.is_under_way(campaign.id):
        return []
    selected_ids = {job.id for job in jobs}
    with submissions.hold(campaign.id) as staged:
        # Another process may have queued them meanwhile.
        unsubmitted_jobs = [job for job in tracker.store.jobs(campaign.id) if not job.batch_id]
        selected = [job for job in unsubmitted_jobs if job.id in selected_ids]
        queued = _queue_jobs(tracker.store, tracker.batch_system, staged, selected, inputs)
        if len(queued) == len(unsubmitted_jobs):
            staged.remove()
        return queued


def _queue_jobs(
    store: Store,
    batch_system: Callable[[str], BatchSystem],
    staged: StagedSubmission,
    rows: Iterable[JobRow],
    inputs: InputReplacement = lambda _, staged_inputs: staged_inputs,
) -> list[JobRow]:
    """Submit staged jobs to their batch systems and return those that are queued."""
    queued: list[JobRow] = []
    missing = {job.id: job for job in rows}
    descriptions = [job for job in staged.read() if job.job_id in missing]
    for name, group in group_by_batch_system([missing[job.job_id] for job in descriptions]):
        selected = {job.id: job for job in group}
        jobs = {
            job.job_id: replace(job, inputs=inputs(job.job_id, job.inputs))
            for job in descriptions
            if job.job_id in selected
        }
        queued += _submit_jobs(store, batch_system(name), jobs, selected)
    return queued


def _submit_jobs(
    store: Store,
    batch: BatchSystem,
    jobs: Mapping[str, JobDescription],
    rows: Mapping[str, JobRow],
) -> list[JobRow]:
    """Submit jobs, by id, to one batch system, store their batch ids and return the jobs."""
    batch_ids: Mapping[str, str] = {}
    campaign_id = next(iter(rows.values())).campaign_id
    try:
        batch_ids = batch.submit(campaign_id, list(jobs.values()))
    except BatchError as error:
        # Jobs that it took before the failure continue, e.g. if only its runner does not start.
        batch_ids = batch.find(jobs)
        lost = [
            make_lost_job(row, "submission", str(error))
            for job_id, row in rows.items()
            if job_id not in batch_ids
        ]
        store.set_jobs(job for job, _ in lost)
        store.set_attempts(attempt for _, attempt in lost)
        raise
    finally:
        queued = [
            replace(rows[job_id], batch_id=batch_id, state=JobState.QUEUED.value)
            for job_id, batch_id in batch_ids.items()
        ]
        store.set_jobs(queued)
    return queued


def describe_interrupted_submission(plan: Plan, settings: Settings) -> str:
    """Describe to the user the state that an interrupted submission left."""
    try:
        with Store.open(settings.database, create=False) as store:
            campaign = store.campaign(plan.campaign_id)
            return describe_campaign_state(make_tracker(store, settings), campaign)
    except (NothingToDoError, ConfigError):
        return "nothing was submitted"


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

    def describe_left_out(self) -> Iterator[str]:
        """Describe the jobs that stay as they are, and the reasons."""
        for site, reason in self.excluded.items():
            yield f"Site {site} is left out: {reason}."
        if self.exhausted:
            yield f"{pluralize(self.exhausted, 'job')} had {MAX_ATTEMPTS_IN_ALL} attempts"
        if self.unqueued:
            jobs = pluralize(self.unqueued, "job")
            yield f"{jobs} cannot be queued, because inputs are not on this machine or were purged; submit again"


def resume_campaign(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    settings: Settings,
    *,
    sites: Collection[str] = (),
    failed: bool = False,
    inputs: Mapping[str, Path] = MappingProxyType({}),
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
        excluded = _leave_out_excluded(tracker, campaign, tracked, settings, include_excluded)
        jobs = [job for job in tracked if job not in excluded]
        released = _release_held_jobs(tracker, jobs)
        last = load_last_attempts(tracker.store, jobs)
        selected = list(_select_jobs(tracker, campaign, jobs, last, failed=failed))
        resumable = [job for job in selected if _count_attempts(job, last) < MAX_ATTEMPTS_IN_ALL]
        with tempfile.TemporaryDirectory(prefix="treehammer-") as folder:
            wall_s = _find_wall_limit_s(campaign, resumable)
            ids = [job.id for job in resumable]
            renewal = make_token_renewal(service, Path(folder), campaign.id, ids, wall_s)

            def renew_inputs(job_id: str, sent: Mapping[str, Path]) -> dict[str, Path]:
                return {**renewal(job_id, sent), **inputs}

            unsent = complete_submission(tracker, campaign, resumable, settings, renew_inputs)
            requeued = len(unsent) + _requeue_jobs(tracker, resumable, last, renew_inputs)
        reasons = {job.site: reason for job, reason in excluded.items()}
        exhausted, unqueued = len(selected) - len(resumable), len(resumable) - requeued
        return ResumeResult(released, requeued, exhausted, unqueued, reasons)


def _leave_out_excluded(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    jobs: Collection[JobRow],
    settings: Settings,
    include: Collection[str],
) -> dict[JobRow, str]:
    """Return job -> reason, of the jobs at sites that may not be used and are not included.

    Included sites are stored with the campaign: later commands leave their jobs in the queue.
    """
    uses = read_uses(tracker.store, settings)
    names = {job.site for job in jobs} if EVERY_SITE in include else {*include}
    forbidden = find_excluded_jobs(campaign, jobs, uses)
    excluded = find_excluded_jobs(campaign, jobs, uses, names)
    reasons = {
        name: forbidden[job.id]
        for job in jobs
        if job.id in forbidden.keys() - excluded.keys()
        for name in names & {job.site, job.door, split_door_label(job.door)[0]}
    }
    if reasons:
        tracker.store.include_sites(campaign.id, reasons)
    return {job: excluded[job.id] for job in jobs if job.id in excluded}


def _find_wall_limit_s(campaign: CampaignRow, jobs: Iterable[JobRow]) -> float:
    """Return the longest limit of some jobs, which those of one submit description share."""
    most = max((job.planned_measurements for job in jobs), default=0)
    return most * (campaign.plan.definition.wall_limit_s + WALL_LIMIT_OVERHEAD_S)


def _count_attempts(job: JobRow, last: Mapping[str, AttemptRow]) -> int:
    return last[job.id].number if job.id in last else 0


def _release_held_jobs(tracker: CampaignTracker, jobs: Collection[JobRow]) -> int:
    held_jobs = [job for job in jobs if job.state == JobState.HELD.value]
    count = sum(
        tracker.batch_system(name).release([job.batch_id for job in group])
        for name, group in group_by_batch_system(held_jobs)
    )
    # Jobs that their pool holds back with their cluster are queued.
    ids_by_queue: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job in jobs:
        if job.batch_id and job.state == JobState.QUEUED.value:
            ids_by_queue[job.site, job.batch_system].append(job.batch_id)
    for (_, name), ids in ids_by_queue.items():
        count += len(ids) * tracker.batch_system(name).release_held(ids, EXCLUDED_MESSAGE)
    return count


def _select_jobs(
    tracker: CampaignTracker,
    campaign: CampaignRow,
    jobs: Collection[JobRow],
    last: Mapping[str, AttemptRow],
    *,
    failed: bool,
) -> Iterator[JobRow]:
    """Yield ended jobs with missing measurements."""
    bad: set[str] = set()
    if failed:
        rows = select_failed_measurements(tracker.store, campaign, ("job_id", "attempt"))
        bad = {str(row["job_id"]) for row in rows if is_from_last_attempt(row, last)}
    for job in jobs:
        if job.state in (JobState.CANCELLED.value, JobState.LOST.value):
            yield job
        elif job.state == JobState.DONE.value:
            attempt = last.get(job.id)
            if job.id in bad or (attempt and attempt.failure_class):
                yield job


def _requeue_jobs(
    tracker: CampaignTracker,
    jobs: Collection[JobRow],
    last: Mapping[str, AttemptRow],
    inputs: InputReplacement,
) -> int:
    """Requeue jobs, store their new batch ids and return their number."""
    count = 0
    for name, group in group_by_batch_system(jobs):
        jobs_by_batch_id = {job.batch_id: job for job in group if job.batch_id}
        earlier = {old: _count_attempts(job, last) for old, job in jobs_by_batch_id.items()}
        new_ids = tracker.batch_system(name).requeue(earlier, inputs)
        tracker.store.set_jobs(
            replace(jobs_by_batch_id[old], batch_id=new, state=JobState.QUEUED.value)
            for old, new in new_ids.items()
        )
        count += len(new_ids)
    return count
