"""Processes of a job on this machine: who they are, and how to end all of them (Linux).

A job is named by its folder in the spool.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from treehammer.collectors.job import JOB_MARK

_PROC = Path("/proc")


def start_time(pid: int) -> int:
    """Clock ticks since boot at which the process started, 0 when there is none.

    With the pid it names a process for good: a pid alone is used again.  A zombie counts as gone.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command's name is in parentheses and may hold anything, even ") R 1".
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def mark_of(job: Path) -> dict[str, str]:
    """The variable that marks all processes of a job.

    It holds the job's folder rather than its batch id: another queue may use the same ids.
    """
    return {JOB_MARK: str(job.absolute())}


def marked(job: Path) -> Iterator[int]:
    """Pids of all living processes of a job, in whatever session or process group they are."""
    ((name, value),) = mark_of(job).items()
    mark = os.fsencode(f"{name}={value}")
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0"):
            yield int(entry.name)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may just have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def end_all(job: Path) -> int:
    """Kill every process of a job and return how many there were.

    What is forked while the others are being killed is met on the next look.
    """
    killed: set[int] = set()
    for _ in range(20):
        found = set(marked(job))
        if not found:
            break
        for pid in found:
            send(pid, signal.SIGKILL)
        killed |= found
    return len(killed)
