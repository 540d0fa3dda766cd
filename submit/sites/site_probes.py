"""Probes for ``sites check``: doors, batch systems, and credentials of the user and of sites."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from treehammer.collectors.job_spec import LOCAL_BATCH
from treehammer.collectors.storage_access import describe_read_limits
from treehammer.collectors.worker.probes.credential_checks import (
    CREDENTIAL_NAMES,
    PROXY_VARIABLE,
    ProxyDetails,
    credential_expiry,
    format_time,
    read_proxy,
    token_expiry,
)
from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import BatchError, ConfigError
from treehammer.program_output import is_private
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.pool import HTCondorPool, daemon_url
from treehammer.submit.sites.site_registry import (
    find_site_credentials,
    load_pools,
    open_htcondor_pool,
)
from treehammer.text_formatting import ProgressFactory, no_progress

if TYPE_CHECKING:
    from treehammer.submit.sites.site_model import Door, Site

PROBE_OK, PROBE_FAILED, PROBE_SKIPPED = "ok", "failed", "skipped"

#: Doors that are probed at a time.
MAX_PARALLEL_PROBES = 8
#: Seconds between attempts to reach a pool's daemons.
PROBE_RETRY_PAUSES_S = (1.0,)
#: Remaining lifetime of a token in seconds below which it should be renewed.
EXPIRY_WARNING_S = 86_400.0
#: Stands for the site of credentials in the user's environment.
USER = "credentials"
#: Seconds by which attributes may end before their proxy without mention.
_SAME_END_S = 60.0


@dataclass(frozen=True)
class SiteProbeResult:
    """Result of one probe.

    Attributes:
        site: name of the site or pool.
        check: probed component, e.g. ``door root``.
        result: ``ok``, ``failed`` or ``skipped``.
        finding: observation or problem.
        remedy: how to solve the problem.
        server: software and version that the server reports.
        rtt_s: shortest of several TCP connects in seconds; None if there was none.
    """

    site: str
    check: str
    result: str
    finding: str
    remedy: str = ""
    server: str = ""
    rtt_s: float | None = None


def probe_sites(
    sites: Sequence[Site],
    target: ProbeTarget,
    settings: Settings,
    bars: ProgressFactory = no_progress,
) -> list[SiteProbeResult]:
    """Probe the doors and batch systems of sites: first pools, then site by site.

    Args:
        sites: sites to probe.
        target: file to read through each door.
        settings: all settings.
        bars: opens progress bars.

    Raises:
        SitesError: the sites file cannot be read or has mistakes.
    """
    pools = {
        name: _probe_pool(name, settings)
        for name in dict.fromkeys(site.pool for site in sites)
        if name
    }
    door_results = _probe_doors(sites, target, bars)
    results = [result for pool in pools.values() for result in pool.results]
    for site in sites:
        for door in site.doors:
            results += door_results[site.name, door.name]
        results += _probe_selector(site, pools)
    return results


def _probe_doors(
    sites: Sequence[Site], target: ProbeTarget, bars: ProgressFactory
) -> Mapping[tuple[str, str], list[SiteProbeResult]]:
    """Probe all doors in parallel; return (site, door) -> results."""
    pairs = [(site, door) for site in sites for door in site.doors]
    results: dict[tuple[str, str], list[SiteProbeResult]] = {}
    with (
        bars("Probing doors", len(pairs)) as step,
        ThreadPoolExecutor(MAX_PARALLEL_PROBES) as executor,
    ):
        tasks = {executor.submit(_probe_reading_and_writing, *pair, target): pair for pair in pairs}
        try:
            for count, task in enumerate(as_completed(tasks), start=1):
                site, door = tasks[task]
                results[site.name, door.name] = task.result()
                step(count, f"{site.name} {door.name}")
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    return results


def _probe_reading_and_writing(
    site: Site, door: Door, target: ProbeTarget
) -> list[SiteProbeResult]:
    read = _probe_door(site, door, target)
    if not door.writable_url:
        return [read]
    check = f"writing {door.name}"
    unreachable = read.result == PROBE_FAILED and read.rtt_s is None and not door.is_path
    if unreachable or (door.is_path and not site.is_local):
        why = "the door does not answer" if unreachable else read.finding
        return [read, SiteProbeResult(site.name, check, PROBE_SKIPPED, why)]
    return [read, _probe_writable_area(site, door, check)]


def _probe_writable_area(site: Site, door: Door, check: str) -> SiteProbeResult:
    url = f"{door.writable_url}/treehammer-probe-{uuid.uuid4().hex[:12]}"
    written = doors.probe_writing(url)
    if written.failure:
        remedy = written.remedy or (
            "Correct load.writable of the door, or let your credentials write there."
        )
        finding = f"{door.writable_url}: {written.message or written.failure}"
        return SiteProbeResult(site.name, check, PROBE_FAILED, finding, remedy)
    finding = f"wrote and removed a file in {door.writable_url}"
    return SiteProbeResult(site.name, check, PROBE_OK, finding)


def _probe_door(site: Site, door: Door, target: ProbeTarget) -> SiteProbeResult:
    check = f"door {door.name}"
    if not door.prefix:
        finding = f"Rucio locates files at {door.rse}; use treehammer datasets verify"
        return SiteProbeResult(site.name, check, PROBE_SKIPPED, finding)
    if site.name == LOCAL_BATCH and door.is_path and not Path(door.prefix).exists():
        finding = f"no dataset is on this machine yet, in {door.prefix}"
        return SiteProbeResult(
            site.name,
            check,
            PROBE_SKIPPED,
            finding,
            "Submissions make the datasets that they read.",
        )
    probe = doors.probe_door(door.prefix, target, is_local=site.is_local)
    result = PROBE_FAILED if probe.problem else PROBE_OK if probe.tried else PROBE_SKIPPED
    server = probe.server
    if server and door.version and door.version not in server:
        server += f" (sites file: {door.version})"
    finding = probe.problem or probe.details
    limits = describe_read_limits(door.prefix) if result == PROBE_OK else ""
    remedy = probe.remedy or limits
    return SiteProbeResult(site.name, check, result, finding, remedy, server, probe.rtt_s)


@dataclass(frozen=True)
class _PoolProbe:
    """Results of a pool; ``batch`` is None if the pool does not respond."""

    batch: HTCondorBatch | None
    results: tuple[SiteProbeResult, ...]


def _probe_pool(name: str, settings: Settings) -> _PoolProbe:
    subject = f"pool {name}"
    try:
        batch = open_htcondor_pool(name, settings)
    except ConfigError as error:
        failure = SiteProbeResult(subject, "settings", PROBE_FAILED, error.message, error.hint)
        return _PoolProbe(None, (failure,))
    batch.connection.pauses_s = PROBE_RETRY_PAUSES_S

    def count_slots() -> str:
        return f"the pool has {batch.connection.matching_slots('true')[1]} slots"

    def identify_schedd() -> str:
        schedd, user = batch.connection.identify_schedd()
        return f"{schedd} accepts jobs of {user}"

    tokens = _probe_tokens(subject, load_pools(settings)[name])
    collector = _run_probe(subject, "collector", count_slots)
    if collector.result != PROBE_OK:
        finding = "unknown address, as the collector does not respond"
        skipped = SiteProbeResult(subject, "schedd", PROBE_SKIPPED, finding)
        return _PoolProbe(None, (*tokens, collector, skipped))
    return _PoolProbe(batch, (*tokens, collector, _run_probe(subject, "schedd", identify_schedd)))


def _run_probe(subject: str, check: str, probe: Callable[[], str]) -> SiteProbeResult:
    try:
        return SiteProbeResult(subject, check, PROBE_OK, probe())
    except BatchError as error:
        return SiteProbeResult(subject, check, PROBE_FAILED, error.message, error.hint)


def _probe_tokens(subject: str, pool: HTCondorPool) -> list[SiteProbeResult]:
    """Check the lifetime of the tokens that the sites file names."""
    files = [pool.scitoken_file] if pool.scitoken_file else []
    if pool.token_dir:
        files = sorted(path for path in pool.token_dir.iterdir() if path.is_file())
        if not files:
            finding = f"no token in {pool.token_dir}"
            remedy = (
                "Request one from the pool's administrator (condor_token_create, "
                "condor_token_request)."
            )
            return [SiteProbeResult(subject, "token", PROBE_FAILED, finding, remedy)]
    return [result for path in files for result in _probe_token_file(subject, path)]


def _probe_token_file(subject: str, path: Path) -> Iterator[SiteProbeResult]:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        finding, remedy = f"cannot be read: {error.strerror}", f"Replace {path}."
        yield SiteProbeResult(subject, f"token {path.name}", PROBE_FAILED, finding, remedy)
        return
    for token in re.findall(r"^\s*([^#\s].*?)\s*$", text, re.MULTILINE) or [""]:
        yield _probe_token(subject, path, token)


def _probe_token(subject: str, path: Path, token: str) -> SiteProbeResult:
    """Check format and lifetime of a token, without repeating its content."""
    check, remedy = f"token {path.name}", f"Replace {path}."
    try:
        end = token_expiry(token)
    except ValueError as error:
        return SiteProbeResult(subject, check, PROBE_FAILED, f"cannot be used: {error}", remedy)
    if token.count(".") != 2:
        return SiteProbeResult(subject, check, PROBE_FAILED, "is not an HTCondor token", remedy)
    if end is None:
        return SiteProbeResult(subject, check, PROBE_OK, "does not expire")
    now = time.time()
    if end <= now:
        finding = f"expired at {format_time(end)}"
        return SiteProbeResult(subject, check, PROBE_FAILED, finding, remedy)
    renewal = "Renew it soon." if end < now + EXPIRY_WARNING_S else ""
    return SiteProbeResult(subject, check, PROBE_OK, f"valid until {format_time(end)}", renewal)


def _probe_selector(site: Site, pools: Mapping[str, _PoolProbe]) -> Iterator[SiteProbeResult]:
    """Check whether jobs for the site would find a machine."""
    if site.grid_resource:
        yield _probe_grid_resource(site)
    elif site.pool:
        yield _probe_requirements(site, pools[site.pool].batch)


def _probe_requirements(site: Site, batch: HTCondorBatch | None) -> SiteProbeResult:
    check = "machines"
    if batch is None:
        return SiteProbeResult(site.name, check, PROBE_SKIPPED, "the pool does not respond")
    try:
        matching, total = batch.connection.matching_slots(site.requirements or "true")
    except BatchError as error:
        return SiteProbeResult(site.name, check, PROBE_FAILED, error.message, error.hint)
    finding = f"{matching} of {total} slots match"
    if matching:
        return SiteProbeResult(site.name, check, PROBE_OK, finding)
    constraint = site.requirements.replace("TARGET.", "")
    return SiteProbeResult(
        site.name,
        check,
        PROBE_FAILED,
        f"{finding}: {site.requirements or 'any'}",
        "Its jobs would stay idle. Correct requirements, or wait for the site's machines: "
        f"condor_status -constraint '{constraint}'",
    )


def _probe_grid_resource(site: Site) -> SiteProbeResult:
    """Check whether the remote pool or compute element accepts connections."""
    check = "grid_resource"
    kind, *words = site.grid_resource.split()
    if kind == "batch":
        finding = "batch systems are configured on the schedd"
        return SiteProbeResult(site.name, check, PROBE_SKIPPED, finding)
    address = words[-1]
    reached = measure_reachability(address if "://" in address else daemon_url(address))
    if reached.rtt_s is None:
        finding = f"{address} does not answer: {reached.error}"
        remedy = "Correct grid_resource, or contact the site."
        return SiteProbeResult(site.name, check, PROBE_FAILED, finding, remedy)
    finding = f"{address} accepts connections; only a job can verify that it accepts jobs"
    return SiteProbeResult(site.name, check, PROBE_OK, finding, rtt_s=reached.rtt_s)


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
    privacy = "" if is_private(path) else f"Other users can read it: run chmod 600 {path}."
    if end is None:
        return SiteProbeResult(subject, check, PROBE_OK, f"{path} states no expiry", privacy)
    finding = ", ".join(filter(None, (_describe_proxy(proxy), _describe_end("", end))))
    attributes_end = proxy.attributes_expire_at if proxy else None
    if attributes_end is not None and attributes_end < end - _SAME_END_S:
        end = attributes_end
        finding += f", {_describe_end('its attributes ', end)}"
    left_s = end - time.time()
    result = PROBE_FAILED if left_s <= 0 else PROBE_OK
    return SiteProbeResult(
        subject, check, result, finding, remedy if left_s < EXPIRY_WARNING_S else privacy
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
