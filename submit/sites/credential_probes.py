"""Credentials of the user and of sites: identity, VOMS attributes and remaining life."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from treehammer.collectors.worker.probes.credential_checks import (
    CREDENTIAL_NAMES,
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    credential_expiry,
    format_time,
)
from treehammer.collectors.worker.probes.proxy_details import ProxyDetails, read_proxy
from treehammer.submit.sites.site_model import Site
from treehammer.submit.sites.site_probes import (
    EXPIRY_WARNING_S,
    PROBE_FAILED,
    PROBE_OK,
    SiteProbeResult,
)

#: Stands for the site of credentials in the user's environment.
USER = "credentials"
#: Seconds by which attributes may end before their proxy without mention.
_SAME_END_S = 60.0
#: Variable of a credential -> submit command by which HTCondor forwards one.
_SUBMIT_COMMANDS = {PROXY_VARIABLE: "x509userproxy", TOKEN_FILE_VARIABLE: "scitokens_file"}


def probe_credentials(
    sites: Iterable[Site], environment: Mapping[str, str]
) -> Iterator[SiteProbeResult]:
    """Probe the credentials that the environment and the submit commands of sites name."""
    for name, label in CREDENTIAL_NAMES.items():
        if environment.get(name):
            yield _probe_credential(USER, f"{label} ({name})", name, Path(environment[name]))
    for site in sites:
        for name, path in find_site_credentials(site.submit).items():
            yield _probe_credential(site.name, CREDENTIAL_NAMES[name], name, path)


def find_site_credentials(commands: Mapping[str, str]) -> dict[str, Path]:
    """Find the credentials that HTCondor forwards: environment variable -> file.

    Args:
        commands: submit commands of a site.
    """
    plain = {key.lower(): value for key, value in commands.items()}
    return {
        name: Path(plain[command])
        for name, command in _SUBMIT_COMMANDS.items()
        if plain.get(command)
    }


def _probe_credential(subject: str, check: str, name: str, path: Path) -> SiteProbeResult:
    remedy = f"Renew {path}."
    proxy = None
    try:
        if name == PROXY_VARIABLE:
            proxy = read_proxy(str(path))
        end = proxy.expires_at if proxy else credential_expiry(name, str(path))
    except OSError as error:
        finding = f"{path}: {error.strerror}"
        return SiteProbeResult(subject, check, PROBE_FAILED, finding, remedy)
    except ValueError as error:
        return SiteProbeResult(subject, check, PROBE_FAILED, f"{path}: {error}", remedy)
    if end is None:
        return SiteProbeResult(subject, check, PROBE_OK, f"{path} states no expiry")
    finding = ", ".join(filter(None, (_describe_proxy(proxy), _describe_end("", end))))
    attributes_end = proxy.attributes_expire_at if proxy else None
    if attributes_end is not None and attributes_end < end - _SAME_END_S:
        end = attributes_end
        finding += f", {_describe_end('its attributes ', end)}"
    left_s = end - time.time()
    result = PROBE_FAILED if left_s <= 0 else PROBE_OK
    return SiteProbeResult(
        subject, check, result, finding, remedy if left_s < EXPIRY_WARNING_S else ""
    )


def _describe_proxy(proxy: ProxyDetails | None) -> str:
    if proxy is None:
        return ""
    if not proxy.attributes:
        return f"{proxy.identity}, no VOMS attributes"
    return f"{proxy.identity}, VO {proxy.vo} ({', '.join(proxy.attributes)})"


def _describe_end(subject: str, end: float) -> str:
    verb = "expired at" if end <= time.time() else "valid until"
    return f"{subject}{verb} {format_time(end)}"
