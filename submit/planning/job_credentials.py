"""Storage credentials and authorities of grid jobs, and checks of their lifetime.

Credential files travel with the job.  Neither their paths nor their content appear in arguments,
records or logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.tls_context import BUNDLE_VARIABLES
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    credential_expiry,
    format_time,
)
from treehammer.collectors.worker.probes.proxy_details import read_proxy
from treehammer.errors import ConfigError
from treehammer.submit.sites.credential_probes import find_site_credentials

#: Names of the files in a job's sandbox.
SANDBOX_NAMES: Mapping[str, str] = {
    PROXY_VARIABLE: "x509-proxy.pem",
    TOKEN_FILE_VARIABLE: "storage-token",
}
#: Name of the authorities' bundle in a job's sandbox, and the variable that names it.
BUNDLE_NAME, BUNDLE_VARIABLE = "authorities.pem", BUNDLE_VARIABLES[0]
_OPTIONS = {PROXY_VARIABLE: "--proxy", TOKEN_FILE_VARIABLE: "--token-file"}
_RENEWAL_HINTS = {
    PROXY_VARIABLE: "Renew it, e.g. voms-proxy-init -valid 96:00",
    TOKEN_FILE_VARIABLE: "Fetch a new one, e.g. htgettoken or oidc-token",
}


@dataclass(frozen=True)
class JobCredentials:
    """Files with an x509 proxy and a bearer token, each optional.

    ``authorities`` is a bundle, or a folder with hashed names, of the authorities of doors.
    """

    proxy: Path | None = None
    token: Path | None = None
    authorities: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.file_by_variable)

    @property
    def file_by_variable(self) -> Mapping[str, Path]:
        """Environment variable -> credential file."""
        files = {PROXY_VARIABLE: self.proxy, TOKEN_FILE_VARIABLE: self.token}
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
        problems = [*self._find_problems(now_s, until_s)]
        if problems:
            raise problems[0]

    def _find_problems(self, now_s: float, until_s: float | None) -> Iterator[ConfigError]:
        for name, path in self.file_by_variable.items():
            where = f"{_OPTIONS[name]} {path}"
            try:
                end, ending = _find_end(name, path)
            except OSError as error:
                yield ConfigError(f"cannot be read ({error.strerror})", where=where)
                continue
            except ValueError as error:
                yield ConfigError(str(error), where=where, hint=f"{_RENEWAL_HINTS[name]}.")
                continue
            if end is not None and end <= now_s:
                yield ConfigError(
                    f"{ending}expired at {format_time(end)}",
                    where=where,
                    hint=f"{_RENEWAL_HINTS[name]}.",
                )
            elif end is not None and until_s is not None and end < until_s:
                yield ConfigError(
                    f"{ending}{'expire' if ending else 'expires'} at {format_time(end)}, but the "
                    "campaign is expected to end at "
                    f"{format_time(until_s)}",
                    where=where,
                    hint=f"{_RENEWAL_HINTS[name]}, or submit a smaller campaign.",
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
