"""Submission of planned campaigns: the same code for the command line, the demo and programs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sqlalchemy.engine import Connection

from treehammer.collectors.job_state import JobState
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, NothingToDoError
from treehammer.progress import ProgressFactory, no_progress
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.read.campaign_counts import CampaignCount
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import BatchSystem, InputReplacement, JobDescription
from treehammer.submit.lifecycle.campaign_request import (
    CampaignRequest,
    estimate_plan_costs,
    plan_request,
)
from treehammer.submit.planning import job_credentials
from treehammer.submit.planning.checks import ceiling_checks
from treehammer.submit.planning.checks.load_permission import check_load_permission
from treehammer.submit.planning.checks.setting_permission import check_setting_permission
from treehammer.submit.planning.plan import Plan
from treehammer.submit.rendering.job_descriptions import render_jobs
from treehammer.submit.reporting import job_reporting
from treehammer.submit.reporting.campaign_upload import CampaignUploader
from treehammer.submit.sites.batch_selection import open_batch_system
from treehammer.submit.tracking.attempt_rows import make_lost_job
from treehammer.submit.tracking.campaign_polling import (
    describe_campaign_state,
    make_tracker,
    wait_for_campaign,
)
from treehammer.submit.tracking.staged_submissions import StagedSubmission, StagedSubmissions
from treehammer.submit.tracking.tracker import CampaignTracker


def check_plan_limits(plan: Plan, settings: Settings) -> None:
    """Refuse a plan that exceeds a ceiling or a permitted load, or outlives its credentials.

    Raises:
        ConfigError: the plan is above a limit, or a credential cannot be used.
    """
    check_load_permission(plan, settings.local_slots)
    check_setting_permission(plan, settings.local_slots)
    costs = estimate_plan_costs(plan, settings)
    ceiling_checks.check_ceilings(plan, costs)
    duration_s = ceiling_checks.estimate_campaign_seconds(plan, costs)
    now = time.time()
    for credentials in (
        plan.options.credentials,
        *(job_credentials.site_credentials(s.submit) for s in plan.sites),
    ):
        credentials.check_validity(now, None if duration_s is None else now + duration_s)


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
    check_plan_limits(plan, settings)
    service = job_reporting.reporting_for_submission(settings, plan.options)
    campaign = plan.make_campaign_row()
    rows = list(plan.make_job_rows())
    with (
        Store.open(settings.database) as store,
        StagedSubmissions(settings.submissions_dir).hold(plan.campaign_id) as staged,
    ):
        staged.write(
            render_jobs(plan, staged.rendered, service=service, slots=settings.local_slots)
        )
        if service is not None:
            CampaignUploader(settings).register_campaign(plan.campaign_id)
        # Fetching software may have taken an hour: the submission starts now.
        store.add_campaign(
            replace(campaign, created_us=time.time_ns() // 1000),
            rows,
            permit,
            key_id=service.key.key_id if service and service.key else "",
        )
        _queue_jobs(store, functools.partial(open_batch_system, settings=settings), staged, rows)
        staged.remove()
        return store.campaign(plan.campaign_id)


def extend_submission(plan: Plan, settings: Settings) -> CampaignRow:
    """Add the jobs of a plan to its campaign, which was submitted with other jobs, and queue them.

    Raises:
        BatchError: a batch system failed; the jobs that it did not take are stored as lost.
        TreehammerError: the store or a template is invalid; nothing was submitted.
    """
    service = job_reporting.reporting_for_submission(settings, plan.options)
    rows = list(plan.make_job_rows())
    with (
        Store.open(settings.database) as store,
        StagedSubmissions(settings.submissions_dir).hold(plan.campaign_id) as staged,
    ):
        staged.write(
            render_jobs(plan, staged.rendered, service=service, slots=settings.local_slots)
        )
        store.extend_campaign(plan.campaign_id, rows)
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
        jobs: selected jobs of it without a batch id.
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
        left = [job for job in tracker.store.jobs(campaign.id) if not job.batch_id]
        selected = [job for job in left if job.id in selected_ids]
        queued = _queue_jobs(tracker.store, tracker.batch_system, staged, selected, inputs)
        if len(queued) == len(left):
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
    for name in sorted({missing[job.job_id].batch_system for job in descriptions}):
        jobs = {
            job.job_id: replace(job, inputs=inputs(job.job_id, job.inputs))
            for job in descriptions
            if missing[job.job_id].batch_system == name
        }
        queued += _submit_jobs(store, batch_system(name), jobs, {id_: missing[id_] for id_ in jobs})
    return queued


def _submit_jobs(
    store: Store,
    batch: BatchSystem,
    jobs: Mapping[str, JobDescription],
    rows: Mapping[str, JobRow],
) -> list[JobRow]:
    """Submit jobs, by id, to one batch system, store their batch ids and return the jobs."""
    batch_ids: Mapping[str, str] = {}
    queued: list[JobRow] = []
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


def run_campaign(
    request: CampaignRequest, settings: Settings, bars: ProgressFactory = no_progress
) -> tuple[CampaignRow, CampaignCount]:
    """Plan, submit, wait and collect.

    Args:
        request: the campaign to run.
        settings: all settings.
        bars: opens progress bars, e.g. :func:`treehammer.terminal.progress_bar`.

    Raises:
        TreehammerError: a step failed; submitted jobs continue.
    """
    campaign = submit_plan(plan_request(request, settings, fetch=True, bars=bars), settings)
    return campaign, wait_for_campaign(campaign, settings, bars)
