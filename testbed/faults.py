"""Changes to a running testbed: injected faults of its daemons, and upgrades of its servers."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from treehammer.collectors.worker.probes.storage_door import query_server
from treehammer.errors import ConfigError, NothingToDoError, TestbedError, suggest_word
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door
from treehammer.testbed import lifecycle
from treehammer.testbed.components import xrootd_storage
from treehammer.testbed.components.site_list import sites_file_path
from treehammer.testbed.workspace import (
    Component,
    DaemonSpec,
    ProgressCallback,
    RunningDaemon,
    Workspace,
    WorkspaceState,
    lock_workspace,
    read_state,
    write_state,
)

#: Seconds for a daemon to end, and for its service to be ready again.
TIMEOUT_S = 30.0
#: Door of the server that a site has without channels, and of the same server over HTTP.
MAIN_DOOR, HTTP_DOOR = "root", "http"
#: Door -> end of the name of its server, after the site's; of secure doors, which have a folder.
_SERVER_SUFFIXES = {
    MAIN_DOOR: "",
    HTTP_DOOR: "",
    "cache": "-cache",
}
_SECURE_SUFFIXES = {
    "roots": "-tokens",
    "https": "-tokens",
    "x509": "-x509",
    "voms": "-voms",
    "voms-https": "-voms",
}
_REDIRECTED_DOORS = ("pinned", "federation")


# --- faults


@contextmanager
def stop_daemon(
    box: Workspace, components: Sequence[Component], name: str, signal_number: int | None = None
) -> Iterator[None]:
    """Stop a daemon while the block runs; restart it afterwards.

    Args:
        box: a running testbed.
        components: of the testbed.
        name: of the daemon in ``testbed status``, e.g. ``xrootd-SITE_B``.
        signal_number: by default the one for an orderly end.

    Raises:
        TestbedError: the daemon is unknown, or does not come back.
    """
    running = _find_daemon(box, name)
    _end_daemon(running, signal_number or running.stop_signal)
    try:
        yield
    finally:
        restarted = next(
            d for component in components for d in component.daemons() if d.name == name
        )
        _replace_daemon(box, running, restarted)
        wait_until(
            lambda: not any(component.describe_missing() for component in components),
            f"{name} is not ready again",
        )


@contextmanager
def suspend_daemon(box: Workspace, name: str) -> Iterator[None]:
    """Suspend a daemon while the block runs: it accepts connections and does not respond.

    Raises:
        TestbedError: the daemon is unknown.
    """
    running = _find_daemon(box, name)
    os.kill(running.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(running.pid, signal.SIGCONT)


@contextmanager
def slow_daemon(box: Workspace, name: str, *, stopped_s: float, running_s: float) -> Iterator[None]:
    """Suspend a daemon again and again while the block runs, so that it answers slowly.

    Args:
        box: a running testbed.
        name: of the daemon in ``testbed status``.
        stopped_s: seconds for which it is suspended each time.
        running_s: seconds for which it runs in between.

    Raises:
        TestbedError: the daemon is unknown.
    """
    stop = threading.Event()

    def alternate() -> None:
        while not stop.is_set():
            with suspend_daemon(box, name):
                stop.wait(stopped_s)
            stop.wait(running_s)

    _find_daemon(box, name)
    thread = threading.Thread(target=alternate, name=f"slow {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def mount_small_disk(
    box: Workspace, components: Sequence[Component], name: str, folder: Path, mebibytes: int
) -> Iterator[None]:
    """Replace a daemon's folder by a small disk while the block runs, as root.

    Other processes do not see it. Afterwards the daemon restarts with its folder.

    Raises:
        TestbedError: the daemon is unknown, or the user may not mount.
    """
    running = _find_daemon(box, name)
    command = ["nsenter", "--target", str(running.pid), "--mount", "mount", "-t", "tmpfs"]
    command += ["-o", f"size={mebibytes}m,mode=777", "none", str(folder)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise TestbedError(f"no disk for {name}: {result.stderr.strip()}", hint="Try it as root.")
    try:
        yield
    finally:
        with stop_daemon(box, components, name):
            pass


def restart_daemon(box: Workspace, daemon: DaemonSpec) -> None:
    """Stop a daemon in order, and start it again as described.

    Raises:
        TestbedError: the daemon is unknown, does not end, or cannot be started.
    """
    running = _find_daemon(box, daemon.name)
    _end_daemon(running, running.stop_signal)
    _replace_daemon(box, running, daemon)


def _end_daemon(running: RunningDaemon, signal_number: int) -> None:
    if not lifecycle.is_alive(running.pid, running.start_ticks):
        return
    # Its children may outlive it for a moment.
    processes = [(pid, lifecycle.start_time(pid)) for pid in _descendant_pids(running.pid)]
    processes.append((running.pid, running.start_ticks))
    os.kill(running.pid, signal_number)
    wait_until(
        lambda: not any(lifecycle.is_alive(*process) for process in processes),
        f"{running.name} does not end",
    )


def _replace_daemon(box: Workspace, old: RunningDaemon, spec: DaemonSpec) -> None:
    new = lifecycle.launch_daemon(box, spec)
    # Other daemons may have been replaced since this one ended.
    state = _load_state(box)
    daemons = tuple(new if daemon == old else daemon for daemon in state.daemons)
    write_state(box.folder, replace(state, daemons=daemons))


def _descendant_pids(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _load_state(box: Workspace) -> WorkspaceState:
    state = read_state(box.folder)
    if state is None:
        raise TestbedError("does not run", where=f"testbed {box.name}")
    return state


def _find_daemon(box: Workspace, name: str) -> RunningDaemon:
    daemons = _load_state(box).daemons
    match = next((daemon for daemon in daemons if daemon.name == name), None)
    if match is None:
        names = ", ".join(daemon.name for daemon in daemons)
        raise TestbedError(f"there is no daemon {name!r}", where=box.name, hint=f"Known: {names}.")
    return match


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
        lifecycle.reap_started()
        time.sleep(0.1)


# --- upgrades


@dataclass(frozen=True)
class ServerUpgrade:
    """Versions that a door's server reported before and after; '' for no answer."""

    before: str
    after: str


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
    _check_name(site, box.sites, "SITE")
    content = sites_file.read_sites_file(sites_file_path(box))
    doors = {
        candidate.name: candidate for candidate in content.sites[site].doors if candidate.prefix
    }
    _check_name(door, tuple(doors), "DOOR")
    folder = _find_server(box, site, door)
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        say(f"restarting the server of {site}, door {door}: {folder / 'xrootd.cfg'}")
        _restart_programs(box, folder)
        wait_until(
            lambda: xrootd_storage.is_listening(doors[door].prefix),
            f"door {door} of {site} does not answer; see treehammer testbed logs",
        )


def upgrade_server(
    box: Workspace, site: str, door: str, suite: str, say: ProgressCallback
) -> ServerUpgrade:
    """Restart the server of a site's door with XRootD of another suite.

    Jobs that read are neither stopped nor warned: their clients reconnect or fail, as at a real
    site. The sites file names the new version.

    Args:
        box: a running testbed.
        site: one of its sites.
        door: the site's main door or one of its channels.
        suite: of Debian, e.g. ``sid``; an older one downgrades the server.
        say: receives progress.

    Raises:
        ConfigError: the site or the door is unknown.
        NothingToDoError: the server uses this suite already.
        TestbedError: the suite cannot be reached, or the server does not come back.
    """
    _check_name(site, box.sites, "SITE")
    _check_name(door, (MAIN_DOOR, *(name for name, _ in box.channels)), "DOOR")
    programs = xrootd_storage.install_servers(suite, box.cache, say)
    folder = _find_server(box, site, door)
    link = folder / xrootd_storage.PROGRAMS_LINK
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        if link.readlink() == programs:
            raise NothingToDoError(f"{site}: the server of door {door} uses {suite} already")
        address = _find_door(box, site, door).prefix
        before = _query_version(address)
        previous = link.readlink()
        xrootd_storage.select_suite(link, programs)
        say(f"restarting the server of {site}, door {door}, with {suite}")
        try:
            _restart_programs(box, folder)
            wait_until(
                lambda: bool(_query_version(address)), f"door {door} of {site} does not answer"
            )
        except TestbedError:
            xrootd_storage.select_suite(link, previous)
            raise
        _record_version(box, site, door, xrootd_storage.read_version(programs))
    return ServerUpgrade(before, _query_version(address))


def _find_server(box: Workspace, site: str, door: str) -> Path:
    """Return the folder of the server behind a door."""
    if door in _SECURE_SUFFIXES:
        return box.folder / "secure" / f"{site}{_SECURE_SUFFIXES[door]}"
    if door in _REDIRECTED_DOORS:
        return box.folder / "xrootd" / xrootd_storage.REDIRECTOR
    return box.folder / "xrootd" / f"{site}{_SERVER_SUFFIXES.get(door, f'-{door}')}"


def _restart_programs(box: Workspace, folder: Path) -> None:
    """Restart the daemons of a server, first the one that the redirector asks."""
    for program in ("cmsd", "xrootd"):
        name = f"{program}-{folder.name}"
        if (folder / f"{name}.json").exists():
            restart_daemon(box, xrootd_storage.load_daemon_spec(folder, name))


def _check_name(name: str, names: tuple[str, ...], where: str) -> None:
    if name not in names:
        raise ConfigError(
            f"the testbed has no {name!r}",
            where=where,
            hint=f"{suggest_word(name, names)}Known: {', '.join(names)}.",
        )


def _find_door(box: Workspace, site: str, name: str) -> Door:
    door = sites_file.read_sites_file(sites_file_path(box)).sites[site].find_door(name)
    if door is None:  # the site's doors are secure ones
        raise ConfigError(f"{site} has no door {name!r}", where=str(sites_file_path(box)))
    return door


def _query_version(address: str) -> str:
    host, _, port = address.split("/")[2].rpartition(":")
    return query_server("root", host, int(port)).version or ""


def _record_version(box: Workspace, site: str, door: str, version: str) -> None:
    path = sites_file_path(box)
    content = sites_file.read_sites_file(path)
    names = (door, HTTP_DOOR) if door == MAIN_DOOR else (door,)
    changed = content.sites[site].replace(
        doors=tuple(
            existing.replace(version=version) if existing.name in names else existing
            for existing in content.sites[site].doors
        ),
    )
    sites = {**content.sites, site: changed}
    sites_file.write_sites_file(sites.values(), content.pools.values(), path)
