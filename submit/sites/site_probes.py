"""``sites check``: each door and each batch selector is tried for real."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.worker.probes.credential_checks import format_time, token_expiry
from treehammer.collectors.worker.probes.storage_door import measure_reachability
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget
from treehammer.errors import BatchError, ConfigError
from treehammer.progress import ProgressFactory, no_progress
from treehammer.submit.batch.htcondor import HTCondorBatch
from treehammer.submit.batch.htcondor.connection import daemon_url
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites.batch_selection import open_htcondor_pool
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.sites.site_registry import load_pools

PROBE_OK, PROBE_FAILED, PROBE_SKIPPED = "ok", "wrong", "not tried"

#: Doors that are tried at a time.
MAX_PARALLEL_PROBES = 8
#: Seconds between tries to reach a pool's daemons.
PROBE_RETRY_PAUSES_S = (1.0,)
#: Seconds before its end from which a token is said to end soon.
EXPIRY_WARNING_S = 86_400.0


@dataclass(frozen=True)
class SiteProbeResult:
    """One thing that was tried.

    Attributes:
        site: name of the site, or of the pool.
        check: what was tried, e.g. ``door root``.
        result: ``ok``, ``wrong`` or ``not tried``.
        found: what was seen, or what is wrong.
        remedy: what to do about it.
        server: what the server calls itself and its version.
        rtt_s: shortest of a few TCP connects, in seconds; None where there is none.
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
    """Try the doors and batch systems of sites: pools first, then site by site.

    Args:
        sites: which.
        target: what to read through each door.
        settings: all settings.
        bars: opens progress bars.

    Raises:
        SitesError: the sites file cannot be read or has mistakes.
    """
    names = dict.fromkeys(_pool_name(site) for site in sites)
    pools = {name: _probe_pool(name, settings) for name in names if name}
    through = [(site, door) for site in sites for door in site.doors]
    with bars("Trying", len(through)) as step, ThreadPoolExecutor(MAX_PARALLEL_PROBES) as executor:
        tasks = {executor.submit(_probe_door, *pair, target): pair for pair in through}
        found: dict[tuple[str, str], SiteProbeResult] = {}
        try:
            for count, task in enumerate(as_completed(tasks), start=1):
                site, door = tasks[task]
                found[site.name, door.name] = task.result()
                step(count, f"{site.name} {door.name}")
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    trials = [trial for pool in pools.values() for trial in pool.results]
    for site in sites:
        trials += [found[site.name, door.name] for door in site.doors]
        trials += _probe_selector(site, pools)
    return trials


def _probe_door(site: Site, door: Door, target: ProbeTarget) -> SiteProbeResult:
    if not door.prefix:
        found = f"Rucio tells where files lie at {door.rse}: treehammer datasets verify"
        return SiteProbeResult(site.name, f"door {door.name}", PROBE_SKIPPED, found)
    probe = doors.probe_door(
        door.protocol, door.prefix, target, here=site.batch_kind == LOCAL_BATCH
    )
    result = PROBE_FAILED if probe.problem else PROBE_OK if probe.tried else PROBE_SKIPPED
    server, version = probe.server, door.version
    if server and version and version not in server:
        server += f" (the sites file says {version})"
    text = probe.problem or probe.details
    return SiteProbeResult(
        site.name, f"door {door.name}", result, text, probe.remedy, server, probe.rtt_s
    )


@dataclass(frozen=True)
class _PoolProbe:
    """A pool that was tried; ``batch`` is None where it cannot be asked anything."""

    batch: HTCondorBatch | None
    results: tuple[SiteProbeResult, ...]


def _pool_name(site: Site) -> str:
    return site.batch.partition("@")[2]


def _probe_pool(name: str, settings: Settings) -> _PoolProbe:
    who = f"pool {name}"
    try:
        batch = open_htcondor_pool(name, settings)
    except ConfigError as error:
        return _PoolProbe(
            None, (SiteProbeResult(who, "settings", PROBE_FAILED, error.message, error.hint),)
        )
    batch.connection.pauses_s = PROBE_RETRY_PAUSES_S
    trials = list(_probe_tokens(who, load_pools(settings)[name]))

    def slots() -> str:
        return f"answers; the pool has {batch.matching_slots('true')[1]} slots"

    def schedd() -> str:
        reached = batch.check()
        return f"{reached.schedd} takes jobs of {reached.user}"

    collector = _run_probe(who, "collector", slots)
    answers = collector.result == PROBE_OK
    untried = SiteProbeResult(
        who, "schedd", PROBE_SKIPPED, "the collector does not tell where it is"
    )
    trials += [collector, _run_probe(who, "schedd", schedd) if answers else untried]
    return _PoolProbe(batch if answers else None, tuple(trials))


def _run_probe(who: str, check: str, ask: Callable[[], str]) -> SiteProbeResult:
    try:
        return SiteProbeResult(who, check, PROBE_OK, ask())
    except BatchError as error:
        return SiteProbeResult(who, check, PROBE_FAILED, error.message, error.hint)


def _probe_tokens(who: str, pool: HTCondorPool) -> Iterator[SiteProbeResult]:
    """How long the tokens hold that the sites file names."""
    files = [pool.scitoken_file] if pool.scitoken_file else []
    if pool.token_dir:
        files = sorted(path for path in pool.token_dir.iterdir() if path.is_file())
        if not files:
            yield SiteProbeResult(
                who,
                "token",
                PROBE_FAILED,
                f"there is no token in {pool.token_dir}",
                "Ask the pool's administrator for one (condor_token_create, condor_token_request).",
            )
    for path in files:
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
            yield SiteProbeResult(who, f"token {path.name}", PROBE_FAILED, why, f"Replace {path}.")
            continue
        lines = [line.strip() for line in text.splitlines()]
        for token in [line for line in lines if line and not line.startswith("#")] or [""]:
            yield _probe_token(who, path, token)


def _probe_token(who: str, path: Path, token: str) -> SiteProbeResult:
    """Whether a token is one, and how long it holds; nothing of it is repeated."""
    check, remedy = f"token {path.name}", f"Replace {path}."
    try:
        end = token_expiry(token)
    except ValueError as error:
        return SiteProbeResult(who, check, PROBE_FAILED, f"cannot be used: {error}", remedy)
    if token.count(".") != 2:
        return SiteProbeResult(who, check, PROBE_FAILED, "is no token that HTCondor knows", remedy)
    if end is None:
        return SiteProbeResult(who, check, PROBE_OK, "has no end")
    if end <= time.time():
        return SiteProbeResult(who, check, PROBE_FAILED, f"expired at {format_time(end)}", remedy)
    soon = "Renew it soon." if end < time.time() + EXPIRY_WARNING_S else ""
    return SiteProbeResult(who, check, PROBE_OK, f"holds until {format_time(end)}", soon)


def _probe_selector(site: Site, pools: Mapping[str, _PoolProbe]) -> Iterator[SiteProbeResult]:
    """Whether jobs for the site would find a machine."""
    if site.grid_resource:
        yield _probe_grid_resource(site)
        return
    pool = pools.get(_pool_name(site))
    if pool is None:
        return
    check = "machines"
    if pool.batch is None:
        yield SiteProbeResult(site.name, check, PROBE_SKIPPED, "the pool cannot be asked")
        return
    try:
        matching, total = pool.batch.matching_slots(site.requirements or "true")
    except BatchError as error:
        yield SiteProbeResult(site.name, check, PROBE_FAILED, error.message, error.hint)
        return
    found = f"{matching} of {total} slots match now"
    if matching:
        yield SiteProbeResult(site.name, check, PROBE_OK, found)
        return
    slots = site.requirements.replace("TARGET.", "")
    yield SiteProbeResult(
        site.name,
        check,
        PROBE_FAILED,
        f"{found}: {site.requirements or 'any'}",
        "Its jobs would stay idle. Correct requirements, or wait for the site's machines: "
        f"condor_status -constraint '{slots}'",
    )


def _probe_grid_resource(site: Site) -> SiteProbeResult:
    """Whether the other pool or the compute element listens; what it says is for its own clients."""
    kind, *words = site.grid_resource.split()
    if kind == "batch":
        return SiteProbeResult(
            site.name, "grid_resource", PROBE_SKIPPED, "a batch system is known on the schedd"
        )
    reached = measure_reachability(words[-1] if "://" in words[-1] else daemon_url(words[-1]))
    if reached.rtt_s is None:
        return SiteProbeResult(
            site.name,
            "grid_resource",
            PROBE_FAILED,
            f"{words[-1]} does not answer: {reached.error}",
            "Correct grid_resource, or ask the site.",
        )
    found = f"{words[-1]} accepts connections; whether it takes jobs only a job can tell"
    return SiteProbeResult(site.name, "grid_resource", PROBE_OK, found, rtt_s=reached.rtt_s)
