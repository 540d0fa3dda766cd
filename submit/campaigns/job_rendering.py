"""Rendering of planned jobs into descriptions for batch systems, and their previews.

A preview is printed, or written to a folder from which its jobs can be tried.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from treehammer.collectors import worker_zipapp
from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE
from treehammer.collectors.job_spec import RETRY_EXIT_CODE, SHARED_LOOPS_VARIABLE, TOKEN_FILE
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.s3_signing import CREDENTIALS_VARIABLE
from treehammer.collectors.software.setup_commands import CVMFS_VARIABLE
from treehammer.collectors.storage_access import CERT_DIR_VARIABLE
from treehammer.collectors.worker.probes.credential_checks import FILE_LINE
from treehammer.config import Settings
from treehammer.errors import ConfigError, SourceError
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.program_output import explain_write_errors
from treehammer.submit.batch.interface import JobDescription, find_batch
from treehammer.submit.batch.local_batch import stage_job
from treehammer.submit.campaigns.job_reporting import (
    JobReporting,
    find_token_lives,
    proxy_environment,
)
from treehammer.submit.planning.job_planner import (
    PAYLOAD_FOLDER,
    Lane,
    PlannedJob,
    find_job_memory_mb,
    locate_payload,
)
from treehammer.submit.planning.job_templates import render_template
from treehammer.submit.planning.permission_checks import count_loading_jobs, limit_load
from treehammer.submit.planning.plan import JobCluster, Plan, find_user
from treehammer.submit.planning.submission_options import BUNDLE_NAME
from treehammer.submit.sites.site_model import Site, token_pool_environment
from treehammer.submit.sites.site_registry import open_batch_system

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
    CREDENTIALS_VARIABLE,
    TOKEN_POOLS_VARIABLE,
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "KRB5CCNAME",
)
PASSED_PREFIXES = ("LC_", "XRD_", "X509_", "ROOT_", "CLING_")
#: Environment of every job; HTCondor starts jobs with an empty one.  With the XRD_ variables, XRootD
#: clients give up on a dead door within two minutes instead of half an hour.
JOB_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "XRD_APPNAME": "treehammer",
    "XRD_CONNECTIONWINDOW": "30",
    "XRD_CONNECTIONRETRY": "2",
    "XRD_REQUESTTIMEOUT": "120",
    "XRD_STREAMTIMEOUT": "60",
    "XRD_TIMEOUTRESOLUTION": "5",
}
#: Names of authorities in a folder for OpenSSL: hash of the subject and a number.
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.\d")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


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
    environ: Mapping[str, str] = os.environ,
    service: JobReporting | None = None,
    slots: int = 1,
    loops: Path | None = None,
) -> Iterator[JobDescription]:
    """Render jobs of a plan one by one, and write their inputs into ``folder``.

    Args:
        plan: the plan.
        folder: an empty folder, which must exist until the jobs are submitted.
        jobs: jobs of this plan; by default all.
        environ: environment of the submission.
        service: the results service that jobs report to; None for none.
        slots: number of jobs that this machine runs at once.
        loops: folder in which jobs on this machine share compiled loops; None for none.

    Raises:
        ConfigError: a template is invalid.
        SourceError: the test's files changed since they were pinned.
    """
    worker = worker_zipapp.build_worker(folder / WORKER_NAME, bytecode=True)
    shared = {WORKER_NAME: worker, **_copy_payloads(plan, folder)}
    environment = job_environment(environ)
    if loops is not None:
        environment[SHARED_LOOPS_VARIABLE] = str(loops)
    if service is not None:
        shared |= service.write_shared_files(folder)
        environment |= proxy_environment(environ)
    sandbox = plan.options.credentials.sandbox_inputs()
    if plan.options.credentials.authorities:
        bundle = write_bundle(plan.options.credentials.authorities, folder / BUNDLE_NAME)
        sandbox[BUNDLE_NAME] = bundle
    token_lives = find_token_lives(plan, slots)

    def tokens(job: PlannedJob) -> dict[str, Path]:
        if service is None:
            return {}
        life_s = token_lives[job.site.name, job.lane]
        expires_us = current_us() + round(life_s * 1e6)
        return {
            TOKEN_FILE: service.write_token(folder, plan.campaign_id, job.spec.job_id, expires_us)
        }

    # All jobs of a cluster need the same text; HTCondor takes them as one cluster only then.
    texts: dict[tuple[str, Lane], str] = {}
    for cluster in plan.clusters:
        text = render_cluster_description(plan, cluster)
        texts.update({(cluster.site.name, lane): text for lane in cluster.lanes})
    loading = count_loading_jobs(plan, slots)
    return (
        _render_job(plan, job, folder, shared | tokens(job), sandbox, texts, environment)
        for job in (limit_load(job, loading) for job in (plan.jobs if jobs is None else jobs))
    )


def _copy_payloads(plan: Plan, folder: Path) -> dict[str, Path]:
    """Copy the test, its other commits and the watches of servers, each into its folder."""
    payloads = {
        PAYLOAD_FOLDER: plan.pinned_test,
        **{locate_payload(commit): test for commit, test in plan.pinned_test.commits.items()},
        **{watch.folder: watch.pinned for watch in plan.jobs.watches},
    }
    return {name: copy_payload(test, folder / name) for name, test in payloads.items()}


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
    if not job.site.is_local:
        inputs |= sandbox
        environment = _node_environment(plan, job.site)
    else:
        environment = {**environment, **job.site.environment}
    text = texts.get((job.site.name, job.lane))
    if text is None:
        text = _render_description(plan, job, sorted(inputs), environment)
    together = job.spec.load.participants if job.spec.load and job.spec.load.barrier else 0
    return JobDescription(job.spec.job_id, text, inputs, together, job.wall_limit_s, job.cpus)


def _render_description(
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
        "executable": sys.executable if job.site.is_local else job.site.python,
        "environment": environment,
        "inputs": inputs,
    }
    return _render_template(job.site, values, job.wall_limit_s, {}, f"job {job.spec.job_id}")


def _render_template(
    site: Site,
    values: Mapping[str, object],
    wall_s: float,
    limits: Mapping[str, object],
    where: str,
) -> str:
    """Render the template of a site's batch system, and check the text."""
    batch, limit_s = find_batch(site.batch), round(wall_s)
    own_limits = batch.find_limits(limit_s)
    limits = {**own_limits, "wall_s": limit_s, "temporary": RETRY_EXIT_CODE, **limits}
    values = {**values, "site": site, "limits": limits}
    text = render_template(
        batch.template, values, folder=site.templates, filters=batch.filters, where=where
    )
    path = (site.templates or batch.template.parent) / batch.template.name
    batch.check_text(text, f"{where}: {path}")
    return text


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


@cache
def submitter_contact() -> str:
    """Return user and host of the submission, as a contact for administrators."""
    return f"{find_user() or 'unknown'}@{socket.getfqdn()}"


def render_cluster_description(plan: Plan, cluster: JobCluster) -> str:
    """Render and check the submit description of a cluster.

    Raises:
        ConfigError: a template is invalid, or a submit command does not exist.
    """
    site = cluster.site
    values = {
        "campaign": {"id": plan.campaign_id, "name": plan.campaign_name},
        "doors": cluster.doors,
        "jobs": cluster.jobs,
        "contact": submitter_contact(),
        "reports_load": plan.pinned_test.definition.load is not None,
        "environment": _node_environment(plan, site),
        "cpus": cluster.cpus,
        "memory_mb": find_job_memory_mb(plan.pinned_test.definition, site),
        "disk_kb": math.ceil(cluster.disk_bytes / 1024),
        "in_flight": cluster.in_flight,
        "delay": plan.options.pace.delay_expression(cluster.jobs, cluster.in_flight),
    }
    # Copy programs of load tests write as many files as the test requests.
    limits = {"disk": plan.pinned_test.definition.load is None}
    return _render_template(site, values, cluster.wall_s, limits, f"site {site.name}")


def _node_environment(plan: Plan, site: Site) -> dict[str, str]:
    """Return the environment of the jobs of a site other than this machine."""
    environment = JOB_ENVIRONMENT | site.environment | plan.options.credentials.environment()
    environment[worker_zipapp.PYTHONS_VARIABLE] = ":".join(site.pythons)
    environment |= token_pool_environment(
        access.door for access in plan.jobs.accesses if access.site.name == site.name
    )
    if site.cert_dir:
        environment[CERT_DIR_VARIABLE] = site.cert_dir
    if site.cvmfs:
        environment[CVMFS_VARIABLE] = site.cvmfs
    return environment


def write_bundle(source: Path, target: Path) -> Path:
    """Write the certificates of a bundle or of a folder with hashed names to one file.

    Nothing else is copied: a private key beside a certificate stays on this machine.

    Raises:
        ConfigError: the source cannot be read, or has no certificate.
    """
    try:
        files = sorted(source.iterdir()) if source.is_dir() else [source]
        parts = [
            f"{FILE_LINE.format(path.name) if source.is_dir() else ''}{certificate}\n"
            for path in files
            if not source.is_dir() or _HASHED_NAME.fullmatch(path.name)
            for certificate in _CERTIFICATE.findall(
                path.read_text(encoding="ascii", errors="replace")
            )
        ]
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror})", where=f"--authorities {source}"
        ) from error
    if not parts:
        raise ConfigError(
            "contains no certificates",
            where=f"--authorities {source}",
            hint="Name a PEM file, or a folder with hashed names such as "
            "/etc/grid-security/certificates.",
        )
    target.write_text("".join(parts), encoding="ascii", errors="replace")
    return target


@dataclass(frozen=True)
class PreviewedText:
    """Text that a batch system would receive for some jobs, or a job's ``job.json``."""

    batch: str
    jobs: Sequence[str]
    text: str


def render_preview(
    plan: Plan, descriptions: Iterable[JobDescription], settings: Settings, *, full: bool
) -> Iterator[PreviewedText]:
    """Yield the texts that batch systems would receive; with ``full``, each job.json too.

    Jobs of one cluster share one text.
    """
    clusters: dict[tuple[str, str], list[JobDescription]] = {}
    batches = _batch_by_job(plan)
    for description in descriptions:
        batch, job = batches[description.job_id], [description.job_id]
        is_alone = not find_batch(batch).is_per_cluster
        if is_alone:
            yield PreviewedText(batch, job, description.text)
        else:
            clusters.setdefault((batch, description.text), []).append(description)
        if full:
            text = description.inputs[JOB_NAME].read_text(encoding="utf-8")
            yield PreviewedText(batch, job, text)
        if is_alone:
            description.inputs[JOB_NAME].unlink()
    for (batch, _), jobs in clusters.items():
        text = open_batch_system(batch, settings).describe(plan.campaign_id, jobs)
        yield PreviewedText(batch, [job.job_id for job in jobs], text)


def write_preview(
    plan: Plan, descriptions: Iterable[JobDescription], settings: Settings, output: Path
) -> int:
    """Write a complete submission into a new folder and return its number of jobs.

    Each job gets a numbered folder, unless its batch system lays out clusters as for submission.

    Raises:
        ConfigError: the folder exists or cannot be written.
    """
    number = 0
    with explain_write_errors(output):
        try:
            output.mkdir(parents=True)
        except FileExistsError as error:
            raise ConfigError(
                "already exists", where=str(output), hint="Name a new folder."
            ) from error
        batches = _batch_by_job(plan)
        clusters: dict[tuple[str, str], list[JobDescription]] = {}
        try:
            for number, description in enumerate(descriptions, start=1):
                batch = batches[description.job_id]
                declaration = find_batch(batch)
                if declaration.is_per_cluster:
                    clusters.setdefault((batch, description.text), []).append(description)
                else:
                    script_name = declaration.script_name or declaration.template.stem
                    stage_job(description, output / str(number), script_name=script_name)
                    description.inputs[JOB_NAME].unlink()
            for (batch, _), jobs in clusters.items():
                open_batch_system(batch, settings).stage(plan.campaign_id, jobs, output)
        except BaseException:
            shutil.rmtree(output, ignore_errors=True)
            raise
    return number


def _batch_by_job(plan: Plan) -> dict[str, str]:
    """Return job id -> name of its batch system."""
    return {job.spec.job_id: job.site.batch for job in plan.jobs}
