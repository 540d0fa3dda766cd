"""Processes of a testbed, found by its mark, and of its daemons."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

from treehammer.testbed.workspace import ENVIRONMENT_MARK


def start_time(pid: int) -> int:
    """Return the process's start in clock ticks since boot; 0 for a zombie or no process.

    Pid and start time identify a process; a pid alone is reused.  ``psutil``'s creation time depends
    on the wall clock, which may be set.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command name is in parentheses and may contain anything, even ") R 1".
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may just have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def is_alive(pid: int, started: int) -> bool:
    """Return whether the process with this pid and start (clock ticks since boot) still runs."""
    return bool(started) and start_time(pid) == started


def find_processes(folder: Path) -> set[int]:
    """Return the pids of all living processes of the testbed in this folder.

    They carry its mark in their environment, descend from one that does, or share its mount namespace,
    because a job may change its environment.
    """
    mark = os.fsencode(f"{ENVIRONMENT_MARK}={folder}")
    spaces: dict[int, Path] = {}
    children: dict[int, list[int]] = defaultdict(list)
    marked: set[int] = set()
    for pid in psutil.pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                marked.add(pid)
        with suppress(OSError):
            spaces[pid] = Path(f"/proc/{pid}/ns/mnt").readlink()
        with suppress(psutil.Error):
            children[psutil.Process(pid).ppid()].append(pid)
    ancestors = [*marked]
    while ancestors:
        descendants = children.pop(ancestors.pop(), [])
        marked.update(descendants)
        ancestors += descendants
    marked_spaces = {spaces[pid] for pid in marked if pid in spaces} - {spaces[os.getpid()]}
    pids = marked | {pid for pid, space in spaces.items() if space in marked_spaces}
    return {pid for pid in pids - {os.getpid()} if start_time(pid)}


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
