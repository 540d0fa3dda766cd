"""Rendering: from planned jobs to exactly what a batch system is sent."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from treehammer.collectors import pack
from treehammer.collectors.providers.script import CVMFS_VARIABLE
from treehammer.collectors.service import TOKEN_NAME
from treehammer.errors import SourceError
from treehammer.hctests.definition import PinnedTest
from treehammer.submit import grid_text, reporting
from treehammer.submit.batch.base import Description
from treehammer.submit.classes import site_classes
from treehammer.submit.plan import Plan
from treehammer.submit.planner import PAYLOAD_FOLDER, PlannedJob
from treehammer.submit.reporting import Deadlines, Reporting
from treehammer.submit.templating import LOCAL, render

WORKER_NAME = "worker.pyz"
JOB_NAME = "job.json"

#: What a local job keeps of the environment it was submitted from: where programs, libraries and
#: credentials are found, never a secret itself.
KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "ROOTSYS",
    CVMFS_VARIABLE,
    "BEARER_TOKEN_FILE",
    "KRB5CCNAME",
)
KEPT_PREFIXES = ("LC_", "XRD_", "X509_", "ROOT_", "CLING_")


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a local job is given, see :data:`KEPT_VARIABLES`."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }


def describe(
    plan: Plan,
    folder: Path,
    jobs: Iterable[PlannedJob] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    service: Reporting | None = None,
    slots: int = 1,
) -> Iterator[Description]:
    """Render jobs of a plan one by one, and write what they need into ``folder``.

    Args:
        plan: what to render.
        folder: an empty folder; it must last until the jobs are submitted.
        jobs: of this plan; by default all.
        environ: the environment jobs are submitted from, ``os.environ`` by default.
        service: the results service that jobs report to; None for none.
        slots: how many jobs this machine runs at once.

    Raises:
        ConfigError: a template is wrong.
        SourceError: the test's files changed since they were pinned.
    """
    worker = pack.build(folder / WORKER_NAME)
    payload = copy_payload(plan.pinned, folder / PAYLOAD_FOLDER)
    shared = {WORKER_NAME: worker, PAYLOAD_FOLDER: payload}
    environ = os.environ if environ is None else environ
    environment = job_environment(environ)
    if service is not None:
        shared |= service.inputs(folder)
        environment |= reporting.environment(environ)
    deadlines = Deadlines(plan, slots)

    def tokens(job: PlannedJob) -> dict[str, Path]:
        if service is None:
            return {}
        expires_us = time.time_ns() // 1000 + round(deadlines.seconds(job) * 1e6)
        return {TOKEN_NAME: service.token(folder, plan.campaign_id, job.spec.job_id, expires_us)}

    # One text for all jobs of a class: only so does HTCondor take them as one cluster.
    texts: dict[tuple[str, str], str] = {}
    for made in site_classes(plan):
        text = grid_text.grid_text(plan, made)
        texts.update({(made.site.name, door): text for door in made.doors})
    return (
        _describe(plan, job, folder, shared | tokens(job), texts, environment)
        for job in (plan.jobs if jobs is None else jobs)
    )


def _describe(
    plan: Plan,
    job: PlannedJob,
    folder: Path,
    shared: Mapping[str, Path],
    texts: Mapping[tuple[str, str], str],
    environment: Mapping[str, str],
) -> Description:
    job_file = folder / f"{job.spec.job_id}.json"
    job_file.write_text(job.spec.to_json() + "\n", encoding="utf-8")
    inputs = {JOB_NAME: job_file, **shared}
    text = texts.get((job.site.name, job.spec.door))
    if text is None:
        text = _local_text(plan, job, sorted(inputs), environment)
    else:
        inputs |= plan.terms.credentials.inputs()
    return Description(job.spec.job_id, text, inputs)


def _local_text(
    plan: Plan, job: PlannedJob, inputs: Sequence[str], environment: Mapping[str, str]
) -> str:
    values = {
        "campaign": {"id": plan.campaign_id, "name": plan.campaign_name},
        "job": {
            "id": job.spec.job_id,
            "site": job.site.name,
            "door": job.spec.door,
            "kind": job.kind,
            "repeat": job.repeat,
            "label": job.label,
            "executions": len(job.spec.executions),
            "wall_limit_s": job.wall_limit_s,
        },
        "executable": sys.executable,
        "environment": environment,
        "inputs": inputs,
    }
    return render(LOCAL, values, where=f"job {job.spec.job_id}")


def copy_payload(pinned: PinnedTest, target: Path) -> Path:
    """Copy the files that the test names, and nothing else, exactly as they were pinned.

    Raises:
        SourceError: one of them is gone or has changed since.
    """
    for name, expected in pinned.hashes.items():
        source, copy = pinned.folder / name, target / name
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)  # with its mode: an executable stays one
            copy.chmod(copy.stat().st_mode | 0o200)
            found = sha256(copy.read_bytes()).hexdigest()
        except OSError as error:
            raise SourceError(
                f"cannot be copied ({error.strerror})",
                where=str(source),
                hint="Submit again once the file is back.",
            ) from error
        if found != expected:
            raise SourceError(
                "changed while it was being submitted",
                where=str(source),
                hint="Submit again once the file is saved.",
            )
    return target
