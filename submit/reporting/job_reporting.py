"""How jobs report to the results service: what each finds beside its ``job.json``, and its token.

A token is minted for each job when it is submitted.  It goes into a file of its own that nobody else
can read, and from there with the job's input to its node: it stands in no description, log, plan or
database.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.service_spec import (
    CA_FILE,
    PROXY_VARIABLES,
    SERVICE_FILE,
    TOKEN_FILE,
    TOKEN_PLACEHOLDER,
    ServiceSpec,
)
from treehammer.collectors.worker.upload.service_client import ServiceConfigError, ServiceEndpoint
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.auth.tokens import TOKEN_VARIABLE, AccessKey, load_user_key, mint_job_token
from treehammer.submit.batch.local import queue_runner
from treehammer.submit.planning.job_clusters import plan_clusters
from treehammer.submit.planning.job_planner import PlannedJob
from treehammer.submit.planning.pacing import Pace
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import SubmissionOptions
from treehammer.submit.rendering import cluster_description

#: Seconds that a job's token outlives the last moment at which its batch system lets it run: a queue
#: was full of other work, a machine was off, a person held the job.
TOKEN_GRACE_S = 7 * 86400.0
_SERVICE_FILES = (SERVICE_FILE, CA_FILE, TOKEN_FILE)
#: Seconds that the service is given to answer before jobs are submitted.
_CHECK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class JobReporting:
    """The results service that jobs report to.

    ``key`` signs their tokens; without one they are given a placeholder, which shows what would be
    sent.
    """

    spec: ServiceSpec
    ca: Path | None
    key: AccessKey | None = None

    def write_shared_files(self, folder: Path) -> dict[str, Path]:
        """Write what all jobs share into ``folder``: name in the sandbox -> file."""
        path = folder / SERVICE_FILE
        path.write_text(self.spec.to_json(), encoding="utf-8")
        files = {SERVICE_FILE: path}
        if self.ca is not None:
            files[CA_FILE] = folder / CA_FILE
            files[CA_FILE].write_bytes(self.ca.read_bytes())
        return files

    def write_token(self, folder: Path, campaign_id: str, job_id: str, expires_us: int) -> Path:
        """Write the token of a job into ``folder``, readable by nobody else; its file."""
        path = folder / f"{job_id}.token"
        text = TOKEN_PLACEHOLDER
        if self.key is not None:
            text = mint_job_token(self.key, campaign_id, job_id, expires_us) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(text)
        return path


def reporting_for_preview(settings: Settings, terms: SubmissionOptions) -> JobReporting | None:
    """The service that jobs would report to, with placeholders for tokens; None for none.

    Raises:
        ConfigError: the file with the service's authorities cannot be used.
    """
    if not settings.service_url or not terms.use_service:
        return None
    made = JobReporting(
        ServiceSpec(settings.service_url, terms.service_wait_s), settings.service_ca_file
    )
    _open_service(made, "placeholder")
    return made


def reporting_for_submission(settings: Settings, terms: SubmissionOptions) -> JobReporting | None:
    """The service that jobs report to; None for none.

    Raises:
        ConfigError: there is no key to mint tokens with, or the service's authorities cannot be used.
    """
    made = reporting_for_preview(settings, terms)
    if made is None:
        return None
    key = load_user_key(settings)
    if key is None:
        raise ConfigError(
            f"there is no key to {made.spec.url}, so jobs could not report there",
            where="service_token_file",
            hint="Ask who runs the service for a key (treehammer token create --role submit), keep "
            f"it in a file that only you can read, and name that: service_token_file, or set {TOKEN_VARIABLE}. "
            "Without the service: --no-service.",
        )
    return JobReporting(made.spec, made.ca, key)


def check_service(settings: Settings, terms: SubmissionOptions) -> list[str]:
    """See that jobs will be able to report; a line for the user where the service cannot be reached.

    Raises:
        ConfigError: there is no key, or the service does not take it.
    """
    made = reporting_for_submission(settings, terms)
    if made is None or made.key is None:
        return []
    until_us = time.time_ns() // 1000 + 60_000_000
    token = mint_job_token(made.key, "none", "none", until_us)
    answer = _open_service(made, token).post([], _CHECK_TIMEOUT_S)
    if answer.status in (401, 403):
        raise ConfigError(
            f"{made.spec.url} does not take our key: {answer.reason}",
            where=f"service_token_file {settings.service_token_file or f'({TOKEN_VARIABLE})'}",
            hint="Ask who runs the service for another key. Without the service: --no-service.",
        )
    # That it wants no empty request is an answer, too.
    if not answer.reason or answer.status in (400, 422):
        return []
    return [
        f"The results service {made.spec.url} cannot be used now: {answer.reason}. The jobs measure all "
        f"the same; each waits {made.spec.wait_s:g} s for it in all (--service-wait, --no-service), and "
        "'collect' takes in what it does not get."
    ]


def _open_service(reporting: JobReporting, token: str) -> ServiceEndpoint:
    try:
        return ServiceEndpoint(reporting.spec.url, token, str(reporting.ca or ""))
    except ServiceConfigError as error:
        raise ConfigError(
            str(error), where="service_ca_file", hint="Name a file with certificates in PEM form."
        ) from error


def proxy_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What tells the worker on this machine of proxies, and payloads nothing.

    A proxy with a password is left out: descriptions hold no secret.
    """
    found = {}
    for name, ours in PROXY_VARIABLES.items():
        value = environ.get(name) or environ.get(name.upper()) or ""
        if value and "@" not in value:
            found[ours] = value
    return found


class TokenDeadlines:
    """Until when the batch systems let each job of a plan run, if every start fails as late as it can.

    Ask for the jobs in the order of the plan.

    Args:
        plan: whose jobs.
        slots: how many jobs this machine runs at once.
    """

    def __init__(self, plan: Plan, slots: int) -> None:
        self._pace = plan.options.pace
        self._slots = slots
        self._classes = {
            (made.site.name, door): made for made in plan_clusters(plan) for door in made.doors
        }
        self._before: Counter[tuple[str, ...]] = Counter()

    def next_deadline_s(self, job: PlannedJob) -> float:
        """Seconds from the submission to the deadline of the next job and the grace of its token."""
        made = self._classes.get((job.site.name, job.spec.door))
        queue = (made.site.name, *made.doors) if made else (LOCAL_BATCH,)
        before = self._before[queue]
        self._before[queue] += 1
        if made is None:
            starts = queue_runner.MAX_LOCAL_ATTEMPTS * (
                job.wall_limit_s + queue_runner.TERMINATE_GRACE_S
            )
            return (before // self._slots + 1) * starts + TOKEN_GRACE_S
        return grid_deadline_s(before, made.in_flight, made.wall_s, self._pace)


def grid_deadline_s(before: int, in_flight: int, wall_s: float, pace: Pace) -> float:
    """Seconds to the deadline of a job in an HTCondor pool, and the grace of its token.

    Args:
        before: how many jobs of its cluster come before it.
        in_flight: how many are in the queue at a time.
        wall_s: after which each is ended.
        pace: of their starts.
    """
    each = cluster_description.IDLE_LIMIT_S + wall_s + cluster_description.RETRY_PAUSE_S
    return (
        pace.last_delay_s(in_flight)
        + (before // in_flight + 1) * cluster_description.MAX_GRID_ATTEMPTS * each
        + TOKEN_GRACE_S
    )


class TokenRenewal:
    """What jobs that are queued anew find of the service, in place of what they had.

    Args:
        reporting: to which; None for none.
        folder: an empty one for the files.
        campaign_id: whose jobs.
        walls_s: job id -> its wall limit in seconds, of all that may be queued.
    """

    def __init__(
        self,
        reporting: JobReporting | None,
        folder: Path,
        campaign_id: str,
        walls_s: Mapping[str, float],
    ) -> None:
        self._reporting = reporting
        self._folder = folder
        self._campaign_id = campaign_id
        self._walls_s = walls_s
        self._places = {job_id: place for place, job_id in enumerate(walls_s)}
        self._shared = reporting.write_shared_files(folder) if reporting else {}

    def __call__(self, job_id: str, sent: Mapping[str, Path]) -> dict[str, Path]:
        """What a job is sent now, that was sent ``sent`` before."""
        kept = {name: path for name, path in sent.items() if name not in _SERVICE_FILES}
        if self._reporting is None or TOKEN_FILE not in sent:
            return kept
        # One after the other is the longest that it can take.
        life_s = grid_deadline_s(self._places[job_id], 1, self._walls_s[job_id], Pace())
        expires_us = time.time_ns() // 1000 + round(life_s * 1e6)
        token = self._reporting.write_token(self._folder, self._campaign_id, job_id, expires_us)
        return {**kept, **self._shared, TOKEN_FILE: token}
