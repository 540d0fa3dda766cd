"""Rendering of planned jobs into the descriptions that batch systems receive."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from treehammer.collectors import worker_zipapp
from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE
from treehammer.collectors.service_spec import TOKEN_FILE
from treehammer.collectors.software.setup_scripts import CVMFS_VARIABLE
from treehammer.errors import SourceError
from treehammer.hctests.matrix.definition import PinnedTest
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.planning.checks.load_permission import count_loading_jobs, limit_load
from treehammer.submit.planning.job_clusters import plan_clusters
from treehammer.submit.planning.job_credentials import BUNDLE_NAME
from treehammer.submit.planning.job_planner import (
    PAYLOAD_FOLDER,
    Lane,
    PlannedJob,
    locate_payload,
)
from treehammer.submit.planning.plan import Plan
from treehammer.submit.rendering import cluster_description
from treehammer.submit.rendering.authority_bundle import write_bundle
from treehammer.submit.reporting import job_reporting
from treehammer.submit.reporting.job_reporting import JobReporting
from treehammer.submit.reporting.token_lifetime import TokenDeadlines
from treehammer.submit.templates.template_engine import LOCAL_TEMPLATE, render_template

WORKER_NAME = "worker.pyz"
JOB_NAME = "job.json"

#: Variables of the submitting environment that local jobs inherit: locations of programs, libraries
#: and credentials, but no secrets.
PASSED_VARIABLES = (
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
    TOKEN_POOLS_VARIABLE,
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "KRB5CCNAME",
)
PASSED_PREFIXES = ("LC_", "XRD_", "X509_", "ROOT_", "CLING_")


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that local jobs inherit, see :data:`PASSED_VARIABLES`."""
    return {
        name: value
        for name, value in environ.items()
        if name in PASSED_VARIABLES or name.startswith(PASSED_PREFIXES)
    }


def render_jobs(
    plan: Plan,
    folder: Path,
    jobs: Iterable[PlannedJob] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    service: JobReporting | None = None,
    slots: int = 1,
) -> Iterator[JobDescription]:
    """Render jobs of a plan one by one, and write their inputs into ``folder``.

    Args:
        plan: the plan.
        folder: an empty folder, which must exist until the jobs are submitted.
        jobs: jobs of this plan; by default all.
        environ: environment of the submission, ``os.environ`` by default.
        service: the results service that jobs report to; None for none.
        slots: number of jobs that this machine runs at once.

    Raises:
        ConfigError: a template is invalid.
        SourceError: the test's files changed since they were pinned.
    """
    worker = worker_zipapp.build_worker(folder / WORKER_NAME, bytecode=True)
    payload = copy_payload(plan.pinned_test, folder / PAYLOAD_FOLDER)
    shared = {WORKER_NAME: worker, PAYLOAD_FOLDER: payload}
    for commit, test in plan.pinned_test.commits.items():
        name = locate_payload(commit)
        shared[name] = copy_payload(test, folder / name)
    for watch in plan.jobs.watches:
        shared[watch.folder] = copy_payload(watch.pinned, folder / watch.folder)
    environ = os.environ if environ is None else environ
    environment = job_environment(environ)
    if service is not None:
        shared |= service.write_shared_files(folder)
        environment |= job_reporting.proxy_environment(environ)
    sandbox = plan.options.credentials.sandbox_inputs()
    if plan.options.credentials.authorities:
        bundle = write_bundle(plan.options.credentials.authorities, folder / BUNDLE_NAME)
        sandbox[BUNDLE_NAME] = bundle
    deadlines = TokenDeadlines(plan, slots)

    def tokens(job: PlannedJob) -> dict[str, Path]:
        if service is None:
            return {}
        expires_us = time.time_ns() // 1000 + round(deadlines.next_deadline_s(job) * 1e6)
        return {
            TOKEN_FILE: service.write_token(folder, plan.campaign_id, job.spec.job_id, expires_us)
        }

    # All jobs of a cluster need the same text; HTCondor takes them as one cluster only then.
    texts: dict[tuple[str, Lane], str] = {}
    for cluster in plan_clusters(plan):
        text = cluster_description.render_cluster_description(plan, cluster)
        texts.update({(cluster.site.name, lane): text for lane in cluster.lanes})
    loading = count_loading_jobs(plan, slots)
    return (
        _render_job(plan, job, folder, shared | tokens(job), sandbox, texts, environment)
        for job in (limit_load(job, loading) for job in (plan.jobs if jobs is None else jobs))
    )


def _render_job(
    plan: Plan,
    job: PlannedJob,
    folder: Path,
    shared: Mapping[str, Path],
    sandbox: Mapping[str, Path],
    texts: Mapping[tuple[str, Lane], str],
    environment: Mapping[str, str],
) -> JobDescription:
    job_file = folder / f"{job.spec.job_id}.json"
    job_file.write_text(job.spec.to_json() + "\n", encoding="utf-8")
    inputs = {JOB_NAME: job_file, **shared}
    text = texts.get((job.site.name, job.lane))
    if text is None:
        text = _render_local_description(plan, job, sorted(inputs), environment)
    else:
        inputs |= sandbox
    together = job.spec.load.participants if job.spec.load and job.spec.load.barrier else 0
    return JobDescription(job.spec.job_id, text, inputs, together)


def _render_local_description(
    plan: Plan, job: PlannedJob, inputs: Sequence[str], environment: Mapping[str, str]
) -> str:
    values = {
        "campaign": {"id": plan.campaign_id, "name": plan.campaign_name},
        "job": {
            "id": job.spec.job_id,
            "site": job.site.name,
            "door": job.access.door_label,
            "kind": job.kind,
            "repeat": job.repeat,
            "label": job.label,
            "executions": len(job.spec.executions),
            "wall_limit_s": job.wall_limit_s,
            "cpus": job.cpus,
        },
        "executable": sys.executable,
        "environment": environment,
        "inputs": inputs,
    }
    return render_template(LOCAL_TEMPLATE, values, where=f"job {job.spec.job_id}")


def copy_payload(pinned: PinnedTest, target: Path) -> Path:
    """Copy exactly the files that the test names, as they were pinned.

    Raises:
        SourceError: a file is missing or has changed since it was pinned.
    """
    for name, expected in pinned.hashes.items():
        source, copy = pinned.folder / name, target / name
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)  # keeps the mode, so executables stay executable
            copy.chmod(copy.stat().st_mode | 0o200)
            digest = sha256(copy.read_bytes()).hexdigest()
        except OSError as error:
            raise SourceError(
                f"cannot be copied ({error.strerror})",
                where=str(source),
                hint="Submit again once the file is back.",
            ) from error
        if digest != expected:
            raise SourceError(
                "changed during the submission",
                where=str(source),
                hint="Submit again once the file is saved.",
            )
    return target
