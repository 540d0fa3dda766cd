"""``sites check``: each door and each batch selector is tried for real."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from treehammer.collectors.worker.credentials import moment, token_end
from treehammer.collectors.worker.door import reach
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.doors import Target
from treehammer.errors import BatchError, ConfigError
from treehammer.submit.batch.htcondor import HTCondorBatch
from treehammer.submit.batch.htcondor.connection import daemon_url
from treehammer.submit.site import Door, Pool, Site
from treehammer.submit.sites import htcondor_pool, known_pools
from treehammer.terminal import Bars, silent

OK, WRONG, UNTRIED = "ok", "wrong", "not tried"

#: Doors that are tried at a time.
ABREAST = 8
#: Seconds between tries to reach a pool's daemons.
PAUSES_S = (1.0,)
#: Seconds before its end from which a token is said to end soon.
SOON_S = 86_400.0


@dataclass(frozen=True)
class Trial:
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
    found: str
    remedy: str = ""
    server: str = ""
    rtt_s: float | None = None


def try_sites(
    sites: Sequence[Site], target: Target, settings: Settings, bars: Bars = silent
) -> list[Trial]:
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
    pools = {name: _tried_pool(name, settings) for name in names if name}
    through = [(site, door) for site in sites for door in site.doors]
    with bars("Trying", len(through)) as step, ThreadPoolExecutor(ABREAST) as executor:
        tasks = {executor.submit(_door, *pair, target): pair for pair in through}
        found: dict[tuple[str, str], Trial] = {}
        try:
            for count, task in enumerate(as_completed(tasks), start=1):
                site, door = tasks[task]
                found[site.name, door.name] = task.result()
                step(count, f"{site.name} {door.name}")
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    trials = [trial for pool in pools.values() for trial in pool.trials]
    for site in sites:
        trials += [found[site.name, door.name] for door in site.doors]
        trials += _selector(site, pools)
    return trials


def _door(site: Site, door: Door, target: Target) -> Trial:
    if not door.prefix:
        found = f"Rucio tells where files lie at {door.rse}: treehammer datasets verify"
        return Trial(site.name, f"door {door.name}", UNTRIED, found)
    probe = doors.probe(door.protocol, door.prefix, target, here=site.batch_kind == "local")
    result = WRONG if probe.problem else OK if probe.tried else UNTRIED
    server, version = probe.server, door.version
    if server and version and version not in server:
        server += f" (the sites file says {version})"
    text = probe.problem or probe.found
    return Trial(site.name, f"door {door.name}", result, text, probe.remedy, server, probe.rtt_s)


@dataclass(frozen=True)
class _TriedPool:
    """A pool that was tried; ``batch`` is None where it cannot be asked anything."""

    batch: HTCondorBatch | None
    trials: tuple[Trial, ...]


def _pool_name(site: Site) -> str:
    return site.batch.partition("@")[2]


def _tried_pool(name: str, settings: Settings) -> _TriedPool:
    who = f"pool {name}"
    try:
        batch = htcondor_pool(name, settings)
    except ConfigError as error:
        return _TriedPool(None, (Trial(who, "settings", WRONG, error.message, error.hint),))
    batch.connection.pauses_s = PAUSES_S
    trials = list(_tokens(who, known_pools(settings)[name]))

    def slots() -> str:
        return f"answers; the pool has {batch.matching_slots('true')[1]} slots"

    def schedd() -> str:
        reached = batch.check()
        return f"{reached.schedd} takes jobs of {reached.user}"

    collector = _asked(who, "collector", slots)
    answers = collector.result == OK
    untried = Trial(who, "schedd", UNTRIED, "the collector does not tell where it is")
    trials += [collector, _asked(who, "schedd", schedd) if answers else untried]
    return _TriedPool(batch if answers else None, tuple(trials))


def _asked(who: str, check: str, ask: Callable[[], str]) -> Trial:
    try:
        return Trial(who, check, OK, ask())
    except BatchError as error:
        return Trial(who, check, WRONG, error.message, error.hint)


def _tokens(who: str, pool: Pool) -> Iterator[Trial]:
    """How long the tokens hold that the sites file names."""
    files = [pool.scitoken_file] if pool.scitoken_file else []
    if pool.token_dir:
        files = sorted(path for path in pool.token_dir.iterdir() if path.is_file())
        if not files:
            yield Trial(
                who,
                "token",
                WRONG,
                f"there is no token in {pool.token_dir}",
                "Ask the pool's administrator for one (condor_token_create, condor_token_request).",
            )
    for path in files:
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
            yield Trial(who, f"token {path.name}", WRONG, why, f"Replace {path}.")
            continue
        lines = [line.strip() for line in text.splitlines()]
        for token in [line for line in lines if line and not line.startswith("#")] or [""]:
            yield _token(who, path, token)


def _token(who: str, path: Path, token: str) -> Trial:
    """Whether a token is one, and how long it holds; nothing of it is repeated."""
    check, remedy = f"token {path.name}", f"Replace {path}."
    try:
        end = token_end(token)
    except ValueError as error:
        return Trial(who, check, WRONG, f"cannot be used: {error}", remedy)
    if token.count(".") != 2:
        return Trial(who, check, WRONG, "is no token that HTCondor knows", remedy)
    if end is None:
        return Trial(who, check, OK, "has no end")
    if end <= time.time():
        return Trial(who, check, WRONG, f"expired at {moment(end)}", remedy)
    soon = "Renew it soon." if end < time.time() + SOON_S else ""
    return Trial(who, check, OK, f"holds until {moment(end)}", soon)


def _selector(site: Site, pools: Mapping[str, _TriedPool]) -> Iterator[Trial]:
    """Whether jobs for the site would find a machine."""
    if site.grid_resource:
        yield _grid_resource(site)
        return
    pool = pools.get(_pool_name(site))
    if pool is None:
        return
    check = "machines"
    if pool.batch is None:
        yield Trial(site.name, check, UNTRIED, "the pool cannot be asked")
        return
    try:
        matching, total = pool.batch.matching_slots(site.requirements or "true")
    except BatchError as error:
        yield Trial(site.name, check, WRONG, error.message, error.hint)
        return
    found = f"{matching} of {total} slots match now"
    if matching:
        yield Trial(site.name, check, OK, found)
        return
    slots = site.requirements.replace("TARGET.", "")
    yield Trial(
        site.name,
        check,
        WRONG,
        f"{found}: {site.requirements or 'any'}",
        "Its jobs would stay idle. Correct requirements, or wait for the site's machines: "
        f"condor_status -constraint '{slots}'",
    )


def _grid_resource(site: Site) -> Trial:
    """Whether the other pool or the compute element listens; what it says is for its own clients."""
    kind, *words = site.grid_resource.split()
    if kind == "batch":
        return Trial(site.name, "grid_resource", UNTRIED, "a batch system is known on the schedd")
    reached = reach(words[-1] if "://" in words[-1] else daemon_url(words[-1]))
    if reached.rtt_s is None:
        return Trial(
            site.name,
            "grid_resource",
            WRONG,
            f"{words[-1]} does not answer: {reached.error}",
            "Correct grid_resource, or ask the site.",
        )
    found = f"{words[-1]} accepts connections; whether it takes jobs only a job can tell"
    return Trial(site.name, "grid_resource", OK, found, rtt_s=reached.rtt_s)
