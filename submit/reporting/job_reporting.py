"""Access of jobs to the results service: files beside ``job.json``, and a token for each job.

A token is minted for each job at submission.  It is written to a separate file that only the user can
read, and travels with the job's input.  It appears in no description, log, plan or database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.service_spec import (
    CA_FILE,
    PROXY_VARIABLES,
    SERVICE_FILE,
    TOKEN_PLACEHOLDER,
    TOKEN_VARIABLE,
    ServiceSpec,
)
from treehammer.collectors.worker.upload.service_client import ServiceConfigError, ServiceEndpoint
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.auth.access_keys import AccessKey, load_user_key
from treehammer.sql.auth.tokens import mint_job_token
from treehammer.submit.planning.submission_options import SubmissionOptions

#: Seconds to wait for an answer of the service before jobs are submitted.
_CHECK_TIMEOUT_S = 5.0


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
            hint="Ask the operator of the service for a key (treehammer token create --role submit), "
            "keep it in a file that only you can read, and name that file: service_token_file, or set "
            f"{TOKEN_VARIABLE}. To submit without the service: --no-service.",
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
    until_us = time.time_ns() // 1000 + 60_000_000
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
