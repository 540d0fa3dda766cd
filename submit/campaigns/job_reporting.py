"""Access of jobs to the results service: service files, and a token for each job.

A token is minted for each job at submission, and anew when it is requeued.  It is written to a
separate file that only the user can read, and travels with the job's input.  It appears in no
description, log, plan or database.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.job_spec import (
    CA_FILE,
    PROXY_VARIABLES,
    SERVICE_FILE,
    TOKEN_FILE,
    TOKEN_PLACEHOLDER,
    TOKEN_VARIABLE,
    ServiceSpec,
)
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.worker.service_client import ServiceConfigError, ServiceEndpoint
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.core.access_keys import AccessKey, load_user_key, mint_job_token
from treehammer.submit.batch.htcondor.submit_description import (
    IDLE_LIMIT_S,
    MAX_GRID_ATTEMPTS,
    RETRY_PAUSE_S,
)
from treehammer.submit.batch.interface import InputReplacement
from treehammer.submit.batch.local_batch import MAX_LOCAL_ATTEMPTS, TERMINATE_GRACE_S
from treehammer.submit.planning.job_planner import Lane
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import Pace, SubmissionOptions

#: Seconds to wait for an answer of the service before jobs are submitted.
_CHECK_TIMEOUT_S = 5.0
#: Seconds that a token stays valid after the last moment at which the batch system runs its job.
#: Covers a queue full of other work, a machine that was off, and jobs held by a person.
TOKEN_GRACE_S = 7 * 86400.0
_SERVICE_FILES = (SERVICE_FILE, CA_FILE, TOKEN_FILE)


@dataclass(frozen=True)
class JobReporting:
    """The results service that jobs report to.

    ``key`` signs their tokens.  Without a key, token files contain a placeholder, as previews need.
    """

    spec: ServiceSpec
    ca: Path | None
    key: AccessKey | None = None

    def write_shared_files(self, folder: Path) -> dict[str, Path]:
        """Write the files that all jobs share into ``folder``; return name in the sandbox -> file."""
        path = folder / SERVICE_FILE
        path.write_text(self.spec.to_json(), encoding="utf-8")
        files = {SERVICE_FILE: path}
        if self.ca is not None:
            files[CA_FILE] = folder / CA_FILE
            files[CA_FILE].write_bytes(self.ca.read_bytes())
        return files

    def write_token(self, folder: Path, campaign_id: str, job_id: str, expires_us: int) -> Path:
        """Write the token of a job into ``folder``, readable by the user only, and return its file."""
        path = folder / f"{job_id}.token"
        text = TOKEN_PLACEHOLDER
        if self.key is not None:
            text = mint_job_token(self.key, campaign_id, job_id, expires_us) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(text)
        return path


def reporting_for_preview(settings: Settings, options: SubmissionOptions) -> JobReporting | None:
    """Return the service that jobs would report to, with token placeholders; None for none.

    Raises:
        ConfigError: the file with the service's CA certificates cannot be used.
    """
    if not settings.service_url or not options.use_service:
        return None
    reporting = JobReporting(
        ServiceSpec(settings.service_url, options.service_timeout_s), settings.service_ca_file
    )
    _open_service(reporting, "placeholder")
    return reporting


def reporting_for_submission(settings: Settings, options: SubmissionOptions) -> JobReporting | None:
    """Return the service that jobs report to; None for none.

    Raises:
        ConfigError: no key is configured, or the file with CA certificates cannot be used.
    """
    reporting = reporting_for_preview(settings, options)
    if reporting is None:
        return None
    key = load_user_key(settings)
    if key is None:
        raise ConfigError(
            f"no key for {reporting.spec.url}; jobs could not report to it",
            where="service_token_file",
            hint="Ask the operator of the service for a key (treehammer token create --role submit --name "
            "NAME), keep it in a file that only you can read, and name that file: service_token_file, "
            f"or set {TOKEN_VARIABLE}. To submit without the service: --no-service.",
        )
    return JobReporting(reporting.spec, reporting.ca, key)


def check_service(settings: Settings, options: SubmissionOptions) -> list[str]:
    """Check that jobs will be able to report; return a warning if the service does not respond.

    Raises:
        ConfigError: no key is configured, or the service rejects it.
    """
    reporting = reporting_for_submission(settings, options)
    if reporting is None or reporting.key is None:
        return []
    until_us = current_us() + 60_000_000
    token = mint_job_token(reporting.key, "none", "none", until_us)
    answer = _open_service(reporting, token).post([], _CHECK_TIMEOUT_S)
    if answer.status in (401, 403):
        raise ConfigError(
            f"{reporting.spec.url} rejects the key: {answer.reason}",
            where=f"service_token_file {settings.service_token_file or f'({TOKEN_VARIABLE})'}",
            hint="Ask the operator of the service for another key. To submit without the service: "
            "--no-service.",
        )
    # A service that rejects the empty request, but not the token, is working.
    if not answer.reason or answer.status in (400, 422):
        return []
    return [
        f"The results service {reporting.spec.url} is not available: {answer.reason}. Jobs measure "
        f"regardless; each spends up to {reporting.spec.wait_s:g} s on the service (--service-timeout, "
        "--no-service), and 'collect' fetches the remaining measurements."
    ]


def _open_service(reporting: JobReporting, token: str) -> ServiceEndpoint:
    try:
        return ServiceEndpoint(reporting.spec.url, token, str(reporting.ca or ""))
    except ServiceConfigError as error:
        raise ConfigError(
            str(error), where="service_ca_file", hint="Name a file with certificates in PEM format."
        ) from error


def proxy_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy variables of local workers, under names that payloads do not interpret.

    A proxy with a password is left out: descriptions contain no secrets.
    """
    variables = {}
    for name, worker_name in PROXY_VARIABLES.items():
        value = environ.get(name) or environ.get(name.upper()) or ""
        if value and "@" not in value:
            variables[worker_name] = value
    return variables


def find_token_lives(plan: Plan, slots: int) -> dict[tuple[str, Lane], float]:
    """Find the seconds from submission to the expiry of the tokens of jobs, by site and lane.

    Each is the end of the last of these jobs if every start fails as late as possible.

    Args:
        plan: the plan.
        slots: number of jobs with one CPU that this machine runs at once.
    """
    lives = {
        (cluster.site.name, lane): grid_deadline_s(
            cluster.jobs - 1, cluster.in_flight, cluster.wall_s, plan.options.pace
        )
        for cluster in plan.clusters
        for lane in cluster.lanes
    }
    # A job takes as many slots as CPUs, and runs alone if there are fewer.
    jobs = [job for job, _ in plan.jobs.iterate_kinds()]
    at_once = max(1, slots // max((job.cpus for job in jobs), default=1))
    longest_s = max((job.wall_limit_s for job in jobs), default=0.0) + TERMINATE_GRACE_S
    local_s = math.ceil(len(plan.jobs) / at_once) * MAX_LOCAL_ATTEMPTS * longest_s + TOKEN_GRACE_S
    return {(job.site.name, job.lane): local_s for job in jobs} | lives


def grid_deadline_s(jobs_before: int, in_flight: int, wall_s: float, pace: Pace) -> float:
    """Return the seconds from submission to the expiry of the token of a job in an HTCondor pool.

    Args:
        jobs_before: number of preceding jobs in its cluster.
        in_flight: number of jobs in the queue at a time.
        wall_s: wall limit of each job.
        pace: of job starts.
    """
    attempt_s = IDLE_LIMIT_S + wall_s + RETRY_PAUSE_S
    return (
        pace.last_delay_s(in_flight)
        + (jobs_before // in_flight + 1) * MAX_GRID_ATTEMPTS * attempt_s
        + TOKEN_GRACE_S
    )


def make_token_renewal(
    reporting: JobReporting | None,
    folder: Path,
    campaign_id: str,
    job_ids: Sequence[str],
    wall_s: float,
) -> InputReplacement:
    """Make the replacement of service files and tokens of jobs that are requeued.

    Args:
        reporting: the results service; None for none.
        folder: an empty folder for the files.
        campaign_id: campaign of the jobs.
        job_ids: all jobs that may be requeued.
        wall_s: wall limit of each in seconds.
    """
    shared = reporting.write_shared_files(folder) if reporting else {}
    positions = {job_id: position for position, job_id in enumerate(job_ids)}

    def renew(job_id: str, inputs: Mapping[str, Path]) -> dict[str, Path]:
        unchanged = {name: path for name, path in inputs.items() if name not in _SERVICE_FILES}
        if reporting is None or TOKEN_FILE not in inputs:
            return unchanged
        # Jobs run one after the other in the worst case.
        life_s = grid_deadline_s(positions[job_id], 1, wall_s, Pace())
        expires_us = current_us() + round(life_s * 1e6)
        token = reporting.write_token(folder, campaign_id, job_id, expires_us)
        return {**unchanged, **shared, TOKEN_FILE: token}

    return renew
