"""Processes of a testbed: which are its own, what they listen on, and how to end all of them."""

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

#: Seconds for daemons to end in an orderly way.
TIMEOUT_S = 8.0
#: How often is looked for processes that were forked while the others were being killed.
KILL_ROUNDS = 20


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that started then (clock ticks since boot) still runs."""
    return bool(started) and start_time(pid) == started


def find_processes(folder: Path) -> set[int]:
    """Pids of all living processes of the testbed in this folder.

    They have its mark in their environment, or live in a mount namespace of one that has: a job
    may have changed its environment.
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
    theirs = {spaces[pid] for pid in marked if pid in spaces} - {_own_mount_namespace()}
    found = marked | {pid for pid, space in spaces.items() if space in theirs}
    return {pid for pid in found if pid != os.getpid() and start_time(pid)}


def _own_mount_namespace() -> Path:
    return Path("/proc/self/ns/mnt").readlink()


def _all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def list_children(pid: int) -> list[tuple[str, int, float]]:
    """Name, pid and start (seconds since the epoch) of the processes that a daemon started.

    Several of one program are told apart by the last of their arguments; copies of the daemon's
    own, such as PostgreSQL's for each connection, are left out.
    """
    found: list[tuple[str, int, float]] = []
    with suppress(psutil.Error):
        daemon = psutil.Process(pid)
        processes = [one for one in daemon.children() if one.name() != daemon.name()]
        names = [process.name() for process in processes]
        for process, name in zip(processes, names, strict=True):
            last = [process.cmdline()[-1]] if names.count(name) > 1 else []
            found.append(("-".join([name, *last]), process.pid, process.create_time()))
    return found


def listening_ports(pid: int) -> list[int]:
    """TCP ports on which a process listens, in order."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []
    return sorted({c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN})


def end_processes(
    folder: Path, daemons: Collection[tuple[int, int, int]], patience: float = TIMEOUT_S
) -> int:
    """End all processes of a testbed; how many had to be killed.

    Args:
        folder: the testbed's.
        daemons: pid, start and stop signal of each that can end in an orderly way, last first.
        patience: seconds for that.
    """
    everything = {(pid, start_time(pid)) for pid in find_processes(folder)}
    waited = [(pid, started) for pid, started, _ in daemons if is_alive(pid, started)]
    for pid, started, number in daemons:
        if is_alive(pid, started):
            send_signal(pid, signal.Signals(number))
    until = time.monotonic() + patience
    while any(is_alive(*one) for one in waited) and time.monotonic() < until:
        time.sleep(0.05)
        reap_started()
    killed: set[int] = set()
    for _ in range(KILL_ROUNDS):
        # Who has lost its mark in the meantime was seen before.
        found = find_processes(folder) | {
            pid for pid, started in everything if is_alive(pid, started)
        }
        if not found:
            break
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        killed |= found
        time.sleep(0.02)
        reap_started()
    return len(killed)


def reap_started() -> None:
    """Let go of daemons that this process started itself and that have ended."""
    for child in list(STARTED_DAEMONS):
        if child.poll() is not None:
            STARTED_DAEMONS.remove(child)


#: Daemons that this process started; of another process they are the children of init.
STARTED_DAEMONS: list[subprocess.Popen[bytes]] = []
