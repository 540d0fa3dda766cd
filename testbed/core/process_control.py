"""Processes of a testbed: finding them, their ports, and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from treehammer.submit.batch.local.job_processes import send_signal, start_time
from treehammer.testbed.core.component import ENVIRONMENT_MARK

#: Seconds for an orderly end of daemons.
TIMEOUT_S = 8.0
#: Rounds of looking for processes that were forked while others were killed.
KILL_ROUNDS = 20


def is_alive(pid: int, started: int) -> bool:
    """Return whether the process with this pid and start (clock ticks since boot) still runs."""
    return bool(started) and start_time(pid) == started


def find_processes(folder: Path) -> set[int]:
    """Return the pids of all living processes of the testbed in this folder.

    They carry its mark in their environment, or share the mount namespace of one that does, because
    a job may change its environment.
    """
    mark = os.fsencode(f"{ENVIRONMENT_MARK}={folder}")
    spaces: dict[int, Path] = {}
    marked: set[int] = set()
    for pid in _all_pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                marked.add(pid)
        with suppress(OSError):
            spaces[pid] = Path(f"/proc/{pid}/ns/mnt").readlink()
    marked_spaces = {spaces[pid] for pid in marked if pid in spaces} - {_own_mount_namespace()}
    pids = marked | {pid for pid, space in spaces.items() if space in marked_spaces}
    return {pid for pid in pids if pid != os.getpid() and start_time(pid)}


def _own_mount_namespace() -> Path:
    return Path("/proc/self/ns/mnt").readlink()


def _all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def list_children(pid: int) -> list[tuple[str, int, float]]:
    """List name, pid and start (seconds since the epoch) of a daemon's children.

    Several children of one program are distinguished by their last argument; copies of the daemon
    itself, such as PostgreSQL's process per connection, are omitted.
    """
    children: list[tuple[str, int, float]] = []
    with suppress(psutil.Error):
        daemon = psutil.Process(pid)
        processes = [child for child in daemon.children() if child.name() != daemon.name()]
        names = [process.name() for process in processes]
        for process, name in zip(processes, names, strict=True):
            last = [process.cmdline()[-1]] if names.count(name) > 1 else []
            children.append(("-".join([name, *last]), process.pid, process.create_time()))
    return children


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens, sorted."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []
    return sorted({c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN})


def end_processes(folder: Path, daemons: Collection[tuple[int, int, int]]) -> int:
    """End all processes of a testbed; return how many had to be killed.

    Args:
        folder: the testbed's.
        daemons: pid, start and stop signal of those that can end orderly, last started first.
    """
    initial = {(pid, start_time(pid)) for pid in find_processes(folder)}
    _stop_daemons(daemons)
    killed: set[int] = set()
    for _ in range(KILL_ROUNDS):
        # A process that lost its mark meanwhile was found earlier.
        remaining = find_processes(folder) | {
            pid for pid, started in initial if is_alive(pid, started)
        }
        if not remaining:
            break
        for pid in remaining:
            send_signal(pid, signal.SIGKILL)
        killed |= remaining
        time.sleep(0.02)
        reap_started()
    return len(killed)


def _stop_daemons(daemons: Collection[tuple[int, int, int]]) -> None:
    """Send each living daemon its stop signal and wait for their end."""
    processes = [(pid, started) for pid, started, _ in daemons if is_alive(pid, started)]
    for pid, started, number in daemons:
        if is_alive(pid, started):
            send_signal(pid, signal.Signals(number))
    until = time.monotonic() + TIMEOUT_S
    while any(is_alive(*process) for process in processes) and time.monotonic() < until:
        time.sleep(0.05)
        reap_started()


def reap_started() -> None:
    """Reap ended daemons that this process started."""
    for child in list(STARTED_DAEMONS):
        if child.poll() is not None:
            STARTED_DAEMONS.remove(child)


#: Daemons started by this process; those of other processes are children of init.
STARTED_DAEMONS: list[subprocess.Popen[bytes]] = []
