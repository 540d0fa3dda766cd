"""Changes to a running testbed: restarts, settings and upgrades of its servers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

import psutil

from treehammer.collectors.worker.distance import read_link, set_link
from treehammer.collectors.worker.probes.server_identity import query_server
from treehammer.collectors.worker.probes.storage_door import identify_server
from treehammer.errors import ConfigError, NothingToDoError, TestbedError, suggest_word
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door
from treehammer.testbed import lifecycle
from treehammer.testbed.components import xrootd_storage
from treehammer.testbed.components.site_list import sites_file_path
from treehammer.testbed.components.xrootd_storage import CACHE_DOOR, ORIGIN_DOOR
from treehammer.testbed.lifecycle import RunningDaemon, WorkspaceState, read_state, write_state
from treehammer.testbed.network import NO_DISTANCE, NetworkDistance
from treehammer.testbed.workspace import ProgressCallback, Workspace, lock_workspace

#: Seconds for a daemon to end, and for its service to be ready again.
TIMEOUT_S = 30.0
#: Door of the server that a site has without channels, and of the same server over HTTP.
MAIN_DOOR, HTTP_DOOR = "root", "http"
#: Door -> server behind it; those of channels are named by their doors.
_SERVERS = {
    **dict.fromkeys((MAIN_DOOR, HTTP_DOOR), "{site}"),
    **dict.fromkeys(("pinned", "federation"), xrootd_storage.REDIRECTOR),
    **dict.fromkeys(("roots", "https"), "{site}-tokens"),
    **dict.fromkeys(("voms", "voms-https"), "{site}-voms"),
}


def end_daemon(daemon: RunningDaemon, signal_number: int) -> None:
    """End a daemon and its children."""
    with suppress(psutil.NoSuchProcess):
        # Its children may outlive it for a moment.
        processes = psutil.Process(daemon.pid).children(recursive=True)
        os.kill(daemon.pid, signal_number)
        wait_until(
            lambda: not daemon.is_alive and not any(child.is_running() for child in processes),
            f"{daemon.spec.name} does not end",
        )


def start_again(box: Workspace, daemon: RunningDaemon) -> None:
    """Start a daemon that has ended."""
    new = lifecycle.launch_daemon(box, daemon.spec)
    # Other daemons may have been replaced since this one ended.
    state = _load_state(box)
    daemons = tuple(new if running == daemon else running for running in state.daemons)
    write_state(box.folder, replace(state, daemons=daemons))


def _load_state(box: Workspace) -> WorkspaceState:
    state = read_state(box.folder)
    if state is None:
        raise TestbedError("does not run", where=f"testbed {box.name}")
    return state


def wait_until(condition: Callable[[], bool], message: str) -> None:
    """Wait until something is true.

    Args:
        condition: called repeatedly.
        message: of the error while it is false.

    Raises:
        TestbedError: it stays false for :data:`TIMEOUT_S`.
    """
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise TestbedError(f"{message} within {TIMEOUT_S:.0f} s")
        time.sleep(0.1)


def restart_server(box: Workspace, site: str, door: str, say: ProgressCallback) -> None:
    """Restart the server behind a site's door with its configuration file as it is now.

    Args:
        box: a running testbed.
        site: one of its sites.
        door: one of the site's doors.
        say: receives progress.

    Raises:
        ConfigError: the site or the door is unknown.
        TestbedError: the server does not come back.
    """
    doors = _list_doors(box, site)
    _check_name(door, doors, "DOOR")
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        folder = _find_servers(box, site, door)[-1].spec.folder
        say(f"restarting the server of {site}, door {door}: {folder / 'xrootd.cfg'}")
        _restart_servers(box, site, doors[door])


def upgrade_server(
    box: Workspace, site: str, door: str, suite: str, say: ProgressCallback, *, newest: bool = False
) -> tuple[str, str]:
    """Restart the server of a site's door with XRootD of another suite.

    Jobs that read are neither stopped nor warned: their clients reconnect or fail, as at a real
    site. The sites file names the new version.

    Args:
        box: a running testbed.
        site: one of its sites.
        door: the site's main door, its cache, the cache's origin, or one of its channels.
        suite: of Debian, e.g. ``sid``, or ``path:FOLDER`` of another installation; an older one
            downgrades the server.
        say: receives progress.
        newest: look for a newer release in the suite's repository.

    Returns:
        Versions that the server reported before and after; '' for no answer.

    Raises:
        ConfigError: the site or the door is unknown.
        NothingToDoError: the server uses this suite already.
        TestbedError: the suite cannot be reached, or the server does not come back.
    """
    doors = _list_doors(box, site)
    names = (MAIN_DOOR, CACHE_DOOR, ORIGIN_DOOR, *dict(box.channels))
    _check_name(door, [name for name in names if name in doors], "DOOR")
    programs = xrootd_storage.install_servers(suite, box.cache, say, newest=newest)
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        link = _find_servers(box, site, door)[-1].spec.folder / xrootd_storage.PROGRAMS_LINK
        previous = link.readlink()
        if previous == programs:
            raise NothingToDoError(f"{site}: the server of door {door} uses {suite} already")
        before = _query_version(doors[door])
        xrootd_storage.select_suite(link, programs)
        say(f"restarting the server of {site}, door {door}, with {suite}")
        try:
            _restart_servers(box, site, doors[door])
        except TestbedError:
            xrootd_storage.select_suite(link, previous)
            raise
        _record_version(box, site, door, xrootd_storage.read_version(programs))
    return before, _query_version(doors[door])


def configure_server(
    box: Workspace, site: str, door: str, settings: Mapping[str, str], say: ProgressCallback
) -> dict[str, tuple[str, str]]:
    """Restart the server behind a site's door with other values of directives.

    The first change keeps the configuration of ``up`` beside the file; without settings it returns.

    Args:
        box: a running testbed.
        site: one of its sites.
        door: one of the site's doors.
        settings: directive, e.g. ``pfc.blocksize`` -> its value, which replaces all others.
        say: receives progress.

    Returns:
        Directives that changed -> values before and after; '' where a directive is absent.

    Raises:
        ConfigError: the site or the door is unknown.
        NothingToDoError: nothing would change.
        TestbedError: the server does not start with these values; it runs with the ones before.
    """
    doors = _list_doors(box, site)
    _check_name(door, doors, "DOOR")
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        path = _find_servers(box, site, door)[-1].spec.folder / "xrootd.cfg"
        original = path.with_suffix(".cfg.original")
        before = path.read_text()
        first = original.read_text() if original.exists() else before
        after = _replace_directives(before, settings) if settings else first
        changes = _compare_directives(before, after)
        if not changes:
            raise NothingToDoError(f"{site}: the server of door {door} has these settings already")
        if not original.exists():
            shutil.copy2(path, original)
        say(f"restarting the server of {site}, door {door}: {path}")
        # The content is replaced, and so keeps its owner.
        path.write_text(after)
        try:
            _restart_servers(box, site, doors[door])
        except TestbedError as error:
            path.write_text(before)
            _restart_servers(box, site, doors[door])
            values = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise TestbedError(
                f"the server does not start with {values or 'its first settings'}; "
                "the settings before are back",
                where=f"{site}, door {door}",
                hint="Its log has the reason: treehammer testbed logs.",
            ) from error
        if not settings:
            original.unlink()
    return changes


def _replace_directives(text: str, settings: Mapping[str, str]) -> str:
    """Remove all lines of some directives of a server's configuration, and append their values."""
    lines = [line for line in text.splitlines() if line.partition(" ")[0] not in settings]
    lines += [f"{name} {value}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _compare_directives(before: str, after: str) -> dict[str, tuple[str, str]]:
    """Compare the directives of two configurations; return those that differ, with both values."""
    old, new = map(_read_directives, (before, after))
    pairs = {name: (old.get(name, ""), new.get(name, "")) for name in sorted(old | new)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _read_directives(text: str) -> dict[str, str]:
    """Read the directives outside of conditions; those of several lines are joined."""
    directives: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if words and not line.startswith(("#", " ")):
            directives.setdefault(words[0], []).append(" ".join(words[1:]))
    return {name: "; ".join(values) for name, values in directives.items()}


def set_distance(
    box: Workspace, site: str, door: str, rtt_ms: float | None, rate_mbit: float | None
) -> tuple[NetworkDistance, NetworkDistance, float | None]:
    """Set round trip and rate of the link before the data of a site's door.

    Args:
        box: a running testbed.
        site: one of its sites.
        door: a door behind a link; of a cache, the link is between it and its origin.
        rtt_ms: round trip; None keeps it.
        rate_mbit: rate of each direction, 0 for no limit; None keeps it.

    Returns:
        the distance before and after, and the measured round trip to the origin in ms; None without
        an answer.

    Raises:
        ConfigError: the site or door is unknown, or there is no link before its data.
        TestbedError: the link does not answer.
    """
    doors = _list_doors(box, site)
    _check_name(door, doors, "DOOR")
    if not doors[door].link:
        linked = ", ".join(name for name in doors if doors[name].link) or "none"
        raise ConfigError(
            f"no link leads to the data of door {door!r}",
            where=site,
            hint=f"Doors of {site} behind a link: {linked}. In tests, the axis latency_ms puts a proxy "
            "before any root or http door.",
        )
    try:
        before = NetworkDistance(*read_link(doors[door].link))
        distance = NetworkDistance(
            before.rtt_ms if rtt_ms is None else rtt_ms,
            before.rate_mbit if rate_mbit is None else rate_mbit or NO_DISTANCE.rate_mbit,
        )
        after = NetworkDistance(*set_link(doors[door].link, distance.rtt_ms, distance.rate_mbit))
    except OSError as error:
        raise TestbedError(str(error), where=f"{site}, door {door}") from error
    return before, after, _measure_round_trip(doors[door])


def _measure_round_trip(door: Door) -> float | None:
    """Measure the round trip to the origin of a door's data in ms; None without an answer."""
    measured_s = identify_server(door.origin or door.prefix).rtt_s
    return None if measured_s is None else measured_s * 1e3


def _find_servers(box: Workspace, site: str, door: str) -> list[RunningDaemon]:
    """Find the daemons of the server behind a door, first the one that the redirector asks."""
    server = _SERVERS.get(door, f"{{site}}-{door}").format(site=site)
    names = (f"cmsd-{server}", f"xrootd-{server}")
    daemons = {daemon.spec.name: daemon for daemon in _load_state(box).daemons}
    return [daemons[name] for name in names if name in daemons]


def _restart_servers(box: Workspace, site: str, door: Door) -> None:
    for daemon in _find_servers(box, site, door.name):
        end_daemon(daemon, daemon.spec.stop_signal)
        start_again(box, daemon)
    wait_until(
        lambda: _is_answering(door.prefix),
        f"door {door.name} of {site} does not answer; see treehammer testbed logs",
    )


def _is_answering(prefix: str) -> bool:
    """Return whether a server answers; a delaying proxy before it accepts connections without it."""
    if not prefix.startswith("root://"):
        return xrootd_storage.is_listening(prefix)
    return identify_server(prefix).is_data_server is not None


def _check_name(name: str, names: Collection[str], where: str) -> None:
    if name not in names:
        raise ConfigError(
            f"the testbed has no {name!r}",
            where=where,
            hint=f"{suggest_word(name, names)}Known: {', '.join(names)}.",
        )


def _list_doors(box: Workspace, site: str) -> dict[str, Door]:
    """Return the doors of a site that have an address, by name."""
    _check_name(site, box.sites, "SITE")
    doors = sites_file.read_sites_file(sites_file_path(box)).sites[site].doors
    return {door.name: door for door in doors if door.prefix}


def _query_version(door: Door) -> str:
    host, _, port = door.prefix.split("/")[2].rpartition(":")
    return query_server("root", host, int(port)).version or ""


def _record_version(box: Workspace, site: str, door: str, version: str) -> None:
    path = sites_file_path(box)
    content = sites_file.read_sites_file(path)
    names = (door, HTTP_DOOR) if door == MAIN_DOOR else (door,)
    evict = xrootd_storage.XrootdStorage(box).make_eviction(version)
    doors = tuple(
        existing.replace(
            version=version, cache=existing.cache and existing.cache.replace(evict=evict)
        )
        if existing.name in names
        else existing
        for existing in content.sites[site].doors
    )
    sites = {**content.sites, site: content.sites[site].replace(doors=doors)}
    sites_file.write_sites_file(sites.values(), content.pools.values(), path)
