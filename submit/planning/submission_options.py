"""Requests of campaigns, and their options: pace of job starts, storage credentials, and permissions.

HTCondor enforces the pace by itself; no Treehammer process has to keep running.

Credential files travel with the job.  Neither their paths nor their content appear in arguments,
records or logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treehammer.collectors.job_spec import DEFAULT_WAIT_S, LOCAL_BATCH
from treehammer.collectors.s3_signing import CREDENTIALS_VARIABLE
from treehammer.collectors.storage_access import BUNDLE_VARIABLES
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    credential_expiry,
    format_time,
)
from treehammer.collectors.worker.probes.proxy_certificates import read_proxy
from treehammer.errors import ConfigError
from treehammer.submit.sites.site_registry import find_site_credentials
from treehammer.text_formatting import JobRamp

#: Begins keys of ``-S`` that are settings of tests which watch servers.
WATCH_PREFIX = "watch."
#: Names of the files in a job's sandbox.
SANDBOX_NAMES: Mapping[str, str] = {
    PROXY_VARIABLE: "x509-proxy.pem",
    TOKEN_FILE_VARIABLE: "storage-token",
    CREDENTIALS_VARIABLE: "s3-credentials",
}
#: Name of the authorities' bundle in a job's sandbox, and the variable that names it.
BUNDLE_NAME, BUNDLE_VARIABLE = "authorities.pem", BUNDLE_VARIABLES[0]
_CREDENTIAL_OPTIONS = {
    PROXY_VARIABLE: "--proxy",
    TOKEN_FILE_VARIABLE: "--token-file",
    CREDENTIALS_VARIABLE: "--s3-credentials",
}
_RENEWAL_HINTS = {
    PROXY_VARIABLE: "Renew it, e.g. voms-proxy-init -valid 96:00",
    TOKEN_FILE_VARIABLE: "Fetch a new one, e.g. htgettoken or oidc-token",
    CREDENTIALS_VARIABLE: "Write aws_access_key_id and aws_secret_access_key below [default] or [HOST]",
}


@dataclass(frozen=True)
class Pace:
    """Pace of job starts at sites whose batch system takes clusters; others may keep ``in_flight`` only.

    Attributes:
        in_flight: jobs of each door queued or running at a time.
        spread_s: seconds over which job starts are spread evenly; 0 for as soon as possible.
        ramp: growth of the number of concurrent jobs; None for all at once.
    """

    in_flight: int = 1
    spread_s: int = 0
    ramp: JobRamp | None = None

    def delay_expression(self, jobs: int, in_flight: int) -> str:
        """Return a ClassAd expression for the seconds from submission to the earliest start of job ProcId.

        Args:
            jobs: number of jobs.
            in_flight: number of jobs in the queue at a time.
        """
        delays = []
        if self.spread_s:
            delays.append(f"int(ProcId * {self.spread_s / jobs:.6f})")
        if self.ramp:
            # Once all slots are taken, a job starts when another has ended.
            step = f"ifThenElse(ProcId < {in_flight}, ProcId, {in_flight - 1}) / {self.ramp.jobs}"
            delays.append(f"({step}) * {self.ramp.every_s}")
        return " + ".join(delays) or "0"

    def last_delay_s(self, in_flight: int) -> float:
        """Return the seconds from submission after which the pace delays no job.

        Args:
            in_flight: number of jobs in the queue at a time.
        """
        ramp = (in_flight - 1) / self.ramp.jobs * self.ramp.every_s if self.ramp else 0.0
        return self.spread_s + ramp


@dataclass(frozen=True)
class JobCredentials:
    """Files with an x509 proxy, a bearer token and S3 keys, each optional.

    ``authorities`` is a bundle, or a folder with hashed names, of the authorities of doors.
    """

    proxy: Path | None = None
    token: Path | None = None
    s3: Path | None = None
    authorities: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.file_by_variable)

    @property
    def file_by_variable(self) -> Mapping[str, Path]:
        """Environment variable -> credential file."""
        files = {
            PROXY_VARIABLE: self.proxy,
            TOKEN_FILE_VARIABLE: self.token,
            CREDENTIALS_VARIABLE: self.s3,
        }
        return {name: path for name, path in files.items() if path is not None}

    def sandbox_inputs(self) -> dict[str, Path]:
        """Return name in the sandbox -> file."""
        return {SANDBOX_NAMES[name]: path for name, path in self.file_by_variable.items()}

    def environment(self) -> dict[str, str]:
        """Return the environment variables that name the files in the sandbox."""
        bundle = {BUNDLE_VARIABLE: BUNDLE_NAME} if self.authorities else {}
        return {name: SANDBOX_NAMES[name] for name in self.file_by_variable} | bundle

    def check_validity(self, now_s: float, until_s: float | None) -> None:
        """Check that each credential is usable and valid until the expected end of the campaign.

        Args:
            now_s: current time, seconds since 1970.
            until_s: expected end, None if unknown.

        Raises:
            ConfigError: one is not; its content is not repeated.
        """
        for name, path in self.file_by_variable.items():
            where, renewal = f"{_CREDENTIAL_OPTIONS[name]} {path}", _RENEWAL_HINTS[name]
            try:
                end, ending = _find_end(name, path)
            except OSError as error:
                raise ConfigError(f"cannot be read ({error.strerror})", where=where) from error
            except ValueError as error:
                raise ConfigError(str(error), where=where, hint=f"{renewal}.") from error
            if end is not None and end <= now_s:
                reason = f"{ending}expired at {format_time(end)}"
                raise ConfigError(reason, where=where, hint=f"{renewal}.")
            if end is not None and until_s is not None and end < until_s:
                raise ConfigError(
                    f"{ending}{'expire' if ending else 'expires'} at {format_time(end)}, but the "
                    f"campaign is expected to end at {format_time(until_s)}",
                    where=where,
                    hint=f"{renewal}, or submit a smaller campaign.",
                )


def _find_end(name: str, path: Path) -> tuple[float | None, str]:
    """Return the expiry of a credential, and the part of it that ends then, '' for the whole.

    Doors that require a VO refuse a proxy whose VOMS attributes have expired.
    """
    if name != PROXY_VARIABLE:
        return credential_expiry(name, str(path)), ""
    proxy = read_proxy(str(path))
    if proxy.attributes_expire_at is not None and proxy.attributes_expire_at < proxy.expires_at:
        return proxy.attributes_expire_at, "its VOMS attributes "
    return proxy.expires_at, ""


def site_credentials(commands: Mapping[str, str]) -> JobCredentials:
    """Return the credentials in a site's submit commands, which HTCondor forwards itself."""
    files = find_site_credentials(commands)
    return JobCredentials(files.get(PROXY_VARIABLE), files.get(TOKEN_FILE_VARIABLE))


@dataclass(frozen=True)
class SubmissionOptions:
    """Options of a submission to grid sites.

    Attributes:
        pace: pace of job starts.
        include_excluded: sites to use although their state forbids it, or ``all``.
        credentials: credentials that jobs present to the storage.
        replica_timeout_s: seconds to wait for sites without a good replica.
        use_service: let jobs report to the results service, if one is configured.
        service_timeout_s: seconds that each job spends on a service that does not respond.
    """

    pace: Pace = field(default_factory=Pace)
    include_excluded: tuple[str, ...] = ()
    credentials: JobCredentials = field(default_factory=JobCredentials)
    replica_timeout_s: float = 0.0
    use_service: bool = True
    service_timeout_s: float = DEFAULT_WAIT_S


DEFAULT_OPTIONS = SubmissionOptions()


@dataclass(frozen=True)
class CampaignRequest:
    """Campaign as requested by a user.

    Attributes:
        test_spec: the test: ``URL@REF:path``, a folder, or the name of a shipped test.
        axes: axis -> values as typed, in place of those in test.toml.
        overrides: key of [test] -> value as typed.
        sites: names of sites whose storage is read.
        from_sites: names of sites that run the jobs; empty: each site reads its own storage.
        name: display name of the campaign; '' for a generated one.
        options: submission options for sites with HTCondor.
        watches: tests that watch the servers during the load.
        watch_sites: names of sites whose jobs run on these servers.
        created_us: time of the request, microseconds since 1970 UTC; 0 for now.
        campaign_id: identity fixed by an earlier plan of this request; '' for a new one.
        max_jobs: number of jobs after which the plan ends; 0 for all.
        excluded: site that the requester has left out because of its state -> reason.
    """

    test_spec: str
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    sites: tuple[str, ...] = (LOCAL_BATCH,)
    from_sites: tuple[str, ...] = ()
    name: str = ""
    options: SubmissionOptions = DEFAULT_OPTIONS
    watches: tuple[str, ...] = ()
    watch_sites: tuple[str, ...] = ()
    created_us: int = 0
    campaign_id: str = ""
    max_jobs: int = 0
    excluded: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            problem = "its name has line breaks or other control characters"
            raise ConfigError(problem, where=f"campaign {self.name[:40]!r}")

    @property
    def test_overrides(self) -> dict[str, str]:
        """Keys of the test itself with their values."""
        return {
            key: self.overrides[key] for key in self.overrides if not key.startswith(WATCH_PREFIX)
        }

    @property
    def watch_settings(self) -> dict[str, str]:
        """Settings of the tests that watch servers, with their values."""
        return {
            key.removeprefix(WATCH_PREFIX): value
            for key, value in self.overrides.items()
            if key.startswith(WATCH_PREFIX)
        }
