"""Previews of submissions: printed, or written to a folder from which they can be tried."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.local.spool import stage_job
from treehammer.submit.planning.plan import Plan
from treehammer.submit.rendering.job_descriptions import JOB_NAME
from treehammer.submit.sites.site_registry import load_pools


def render_preview(
    plan: Plan, descriptions: Iterable[JobDescription], settings: Settings, *, full: bool
) -> Iterator[str]:
    """Yield the texts that batch systems would receive; with ``full``, each job.json too.

    Jobs of one HTCondor cluster share one text.
    """
    clusters: dict[tuple[str, str], list[JobDescription]] = {}
    batches = _batch_by_job(plan)
    for description in descriptions:
        batch = batches[description.job_id]
        if batch == LOCAL_BATCH:
            yield description.text
        else:
            clusters.setdefault((batch, description.text), []).append(description)
        if full:
            yield description.inputs[JOB_NAME].read_text(encoding="utf-8")
        if batch == LOCAL_BATCH:
            description.inputs[JOB_NAME].unlink()
    for (batch, text), jobs in clusters.items():
        yield _full_description(
            _submission_root(batch, settings),
            plan.campaign_id,
            text,
            jobs,
            _find_pool(batch, settings),
        )


def write_preview(
    plan: Plan, descriptions: Iterable[JobDescription], settings: Settings, output: Path
) -> int:
    """Write a complete submission into a new folder and return its number of jobs.

    Each local job gets a numbered folder.  Jobs of an HTCondor pool are laid out as for submission,
    with a ``submit.txt`` for condor_submit.

    Raises:
        ConfigError: the folder exists or cannot be written.
    """
    try:
        output.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigError("already exists", where=str(output), hint="Name a new folder.") from error
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
    try:
        return _write_job_folders(plan, descriptions, settings, output)
    except BaseException as error:
        shutil.rmtree(output, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
        raise


def _write_job_folders(
    plan: Plan, descriptions: Iterable[JobDescription], settings: Settings, output: Path
) -> int:
    from treehammer.submit.batch.htcondor.submission_folder import Submission

    batches = _batch_by_job(plan)
    clusters: dict[tuple[str, str], list[JobDescription]] = {}
    number = 0
    for number, description in enumerate(descriptions, start=1):
        batch = batches[description.job_id]
        if batch == LOCAL_BATCH:
            stage_job(description, output / str(number))
            description.inputs[JOB_NAME].unlink()
        else:
            clusters.setdefault((batch, description.text), []).append(description)
    for (batch, text), jobs in clusters.items():
        root = output.resolve() / _find_pool(batch, settings).name
        (root / ".incoming").mkdir(parents=True, exist_ok=True)
        submission = Submission.for_jobs(root, plan.campaign_id, text, [job.job_id for job in jobs])
        # condor_submit on the command line spools nothing.
        submission.stage(text, jobs, spool=False)
        with submission.description_file.open("a", encoding="utf-8") as stream:
            stream.write(_queue_statement(jobs))
        (root / ".incoming").rmdir()
    return number


def _full_description(
    root: Path, campaign: str, text: str, jobs: list[JobDescription], pool: HTCondorPool
) -> str:
    from treehammer.submit.batch.htcondor.submission_folder import Submission

    submission = Submission.for_jobs(root, campaign, text, [job.job_id for job in jobs])
    return submission.full_description(text, jobs, spool=pool.spool) + _queue_statement(jobs)


def _queue_statement(jobs: Iterable[JobDescription]) -> str:
    return "\n".join(["queue job_id from (", *(job.job_id for job in jobs), ")", ""])


def _batch_by_job(plan: Plan) -> dict[str, str]:
    """Return job id -> name of its batch system."""
    return {job.spec.job_id: job.site.batch for job in plan.jobs}


def _find_pool(batch: str, settings: Settings) -> HTCondorPool:
    return load_pools(settings)[batch.partition("@")[2]]


def _submission_root(batch: str, settings: Settings) -> Path:
    """Return the folder from which jobs of a pool are submitted."""
    pool = _find_pool(batch, settings)
    return (pool.submit_dir or settings.htcondor_dir / pool.name).resolve()
