"""Probes for ``sites check``: doors, batch systems, and credentials of the user and of sites."""

from __future__ import annotations

import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from treehammer.collectors.job_spec import LOCAL_BATCH
from treehammer.collectors.storage_access import describe_read_limits
from treehammer.collectors.worker.probes.credential_checks import (
    CREDENTIAL_NAMES,
    PROXY_VARIABLE,
    credential_expiry,
    format_time,
)
from treehammer.collectors.worker.probes.proxy_certificates import ProxyDetails, read_proxy
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import BatchError, ConfigError
from treehammer.program_output import is_private
from treehammer.submit.batch.interface import PROBE_FAILED, PROBE_OK, PROBE_SKIPPED, ProbeResult
from treehammer.submit.sites.site_registry import find_site_credentials, open_batch_system
from treehammer.text_formatting import ProgressFactory, no_progress

if TYPE_CHECKING:
    from treehammer.submit.sites.site_model import Door, Site

#: Doors that are probed at a time.
MAX_PARALLEL_PROBES = 8
#: Remaining lifetime of a token in seconds below which it should be renewed.
EXPIRY_WARNING_S = 86_400.0
#: Stands for the site of credentials in the user's environment.
USER = "credentials"
#: Seconds by which attributes may end before their proxy without mention.
_SAME_END_S = 60.0
#: Remedies of failures to write by the message of a storage, the first that matches.
_WRITE_HINTS = (
    (r"^507 |\[30(09|21)\]|[Nn]o space|[Qq]uota", "Make room at the storage, or raise its quota."),
    (r"^5\d\d |\[30(05|07|08|12)\]", "Look into the server's log."),
    ("", "Correct load.writable of the door, or let your credentials write there."),
)


def probe_sites(
    sites: Sequence[Site],
    target: ProbeTarget,
    settings: Settings,
    bars: ProgressFactory = no_progress,
) -> list[ProbeResult]:
    """Probe the doors and batch systems of sites: first batch systems, then site by site.

    Args:
        sites: sites to probe.
        target: file to read through each door.
        settings: all settings.
        bars: opens progress bars.

    Raises:
        SitesError: the sites file cannot be read or has mistakes.
    """
    batches: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        if not site.is_local:
            batches[site.batch].append(site)
    results: list[ProbeResult] = []
    for name, batch_sites in batches.items():
        try:
            results += open_batch_system(name, settings).probe(batch_sites)
        except (BatchError, ConfigError) as error:
            pool = batch_sites[0].pool
            subject = f"pool {pool}" if pool else name
            results.append(
                ProbeResult(subject, "settings", PROBE_FAILED, error.message, error.hint)
            )
    numbers = {site.name: number for number, site in enumerate(sites)}
    results = [*_probe_doors(sites, target, bars), *results]
    # Stable: the doors of a site stay before its batch system.
    return sorted(results, key=lambda result: numbers.get(result.site, -1))


def _probe_doors(
    sites: Sequence[Site], target: ProbeTarget, bars: ProgressFactory
) -> list[ProbeResult]:
    """Probe all doors in parallel; return their results in the order of the doors."""
    pairs = [(site, door) for site in sites for door in site.doors]
    with (
        bars("Probing doors", len(pairs)) as step,
        ThreadPoolExecutor(MAX_PARALLEL_PROBES) as executor,
    ):
        tasks = {executor.submit(_probe_reading_and_writing, *pair, target): pair for pair in pairs}
        try:
            for count, task in enumerate(as_completed(tasks), start=1):
                site, door = tasks[task]
                task.result()
                step(count, f"{site.name} {door.name}")
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    return [result for task in tasks for result in task.result()]


def _probe_reading_and_writing(site: Site, door: Door, target: ProbeTarget) -> list[ProbeResult]:
    read = _probe_door(site, door, target)
    if not door.writable_url:
        return [read]
    check = f"writing {door.name}"
    unreachable = read.result == PROBE_FAILED and read.rtt_s is None and not door.is_path
    if unreachable or (door.is_path and not site.is_local):
        why = "the door does not answer" if unreachable else read.finding
        return [read, ProbeResult(site.name, check, PROBE_SKIPPED, why)]
    return [read, _probe_writable_area(site, door, check)]


def _probe_writable_area(site: Site, door: Door, check: str) -> ProbeResult:
    url = f"{door.writable_url}/treehammer-probe-{uuid.uuid4().hex[:12]}"
    written = doors.probe_writing(url)
    if written.failure:
        matches = (hint for words, hint in _WRITE_HINTS if re.search(words, written.message))
        remedy = written.remedy or next(matches)
        finding = f"{door.writable_url}: {written.message or written.failure}"
        return ProbeResult(site.name, check, PROBE_FAILED, finding, remedy)
    finding = f"wrote and removed a file in {door.writable_url}"
    return ProbeResult(site.name, check, PROBE_OK, finding)


def _probe_door(site: Site, door: Door, target: ProbeTarget) -> ProbeResult:
    check = f"door {door.name}"
    if not door.prefix:
        finding = f"Rucio locates files at {door.rse}; use treehammer datasets verify"
        return ProbeResult(site.name, check, PROBE_SKIPPED, finding)
    if site.name == LOCAL_BATCH and door.is_path and not Path(door.prefix).exists():
        finding = f"no dataset is on this machine yet, in {door.prefix}"
        remedy = "Submissions make the datasets that they read."
        return ProbeResult(site.name, check, PROBE_SKIPPED, finding, remedy)
    probe = doors.probe_door(door.prefix, target, is_local=site.is_local)
    result = PROBE_FAILED if probe.problem else PROBE_OK if probe.tried else PROBE_SKIPPED
    finding = probe.problem or probe.details
    limits = describe_read_limits(door.prefix) if result == PROBE_OK else ""
    remedy, server = probe.remedy or limits, _describe_server(probe.server, door)
    return ProbeResult(site.name, check, result, finding, remedy, server, probe.rtt_s)


def _describe_server(server: str, door: Door) -> str:
    """Describe a door's server, and another version in the sites file."""
    if server and door.version and door.version not in server:
        return f"{server} (sites file: {door.version})"
    return server


def probe_credentials(
    sites: Iterable[Site], environment: Mapping[str, str]
) -> Iterator[ProbeResult]:
    """Probe the credentials that the environment and the submit commands of sites name."""
    for name, label in CREDENTIAL_NAMES.items():
        if environment.get(name):
            yield _probe_credential(USER, f"{label} ({name})", name, Path(environment[name]))
    for site in sites:
        for name, path in find_site_credentials(site.submit).items():
            yield _probe_credential(site.name, CREDENTIAL_NAMES[name], name, path)


def _probe_credential(subject: str, check: str, name: str, path: Path) -> ProbeResult:
    remedy = f"Renew {path}."
    try:
        proxy = read_proxy(str(path)) if name == PROXY_VARIABLE else None
        end = proxy.expires_at if proxy else credential_expiry(name, str(path))
    except (OSError, ValueError) as error:
        finding = f"{path}: {getattr(error, 'strerror', error)}"
        return ProbeResult(subject, check, PROBE_FAILED, finding, remedy)
    privacy = "" if is_private(path) else f"Other users can read it: run chmod 600 {path}."
    if end is None:
        return ProbeResult(subject, check, PROBE_OK, f"{path} states no expiry", privacy)
    finding = _describe_end("", end)
    if proxy:
        finding, end = _describe_proxy(proxy)
    left_s = end - time.time()
    result = PROBE_FAILED if left_s <= 0 else PROBE_OK
    advice = remedy if left_s < EXPIRY_WARNING_S else privacy
    return ProbeResult(subject, check, result, finding, advice)


def _describe_proxy(proxy: ProxyDetails) -> tuple[str, float]:
    """Describe a proxy; return also the end of its attributes if it is earlier, else its own."""
    end, attributes_end = proxy.expires_at, proxy.attributes_expire_at
    vo = f"VO {proxy.vo} ({', '.join(proxy.attributes)})" if proxy.attributes else ""
    finding = f"{proxy.identity}, {vo or 'no VOMS attributes'}, {_describe_end('', end)}"
    if attributes_end is None or attributes_end >= end - _SAME_END_S:
        return finding, end
    return f"{finding}, {_describe_end('its attributes ', attributes_end)}", attributes_end


def _describe_end(subject: str, end: float) -> str:
    verb = "expired at" if end <= time.time() else "valid until"
    return f"{subject}{verb} {format_time(end)}"
