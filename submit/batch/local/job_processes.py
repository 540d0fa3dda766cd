"""Processes of a job on this machine: who they are, and how to end all of them (Linux).

A job is named by its folder in the spool.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from treehammer.collectors.job_spec import JOB_MARK_VARIABLE
from treehammer.collectors.worker.probes.process_stats import list_descendants, read_text

_PROC = Path("/proc")
#: How often is looked for processes that were forked while the others were being killed.
MAX_KILL_ROUNDS = 20


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


def job_marker(job: Path) -> dict[str, str]:
    """The variable that marks all processes of a job.

    It holds the job's folder rather than its batch id: another queue may use the same ids.
    """
    return {JOB_MARK_VARIABLE: str(job.absolute())}


def find_marked_processes(job: Path) -> Iterator[int]:
    """Pids of all living processes of a job, in whatever session or process group they are."""
    ((name, value),) = job_marker(job).items()
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


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may just have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def kill_job_processes(job: Path) -> int:
    """Kill every process of a job and return how many there were.

    What is forked while the others are being killed is met on the next look.
    """
    killed: set[int] = set()
    for _ in range(MAX_KILL_ROUNDS):
        found = set(find_marked_processes(job))
        if not found:
            break
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        killed |= found
    return len(killed)


def kill_orphans(workers: Collection[int]) -> int:
    """Kill every child of this process but ``workers``, and all below it; how many there were.

    For the runner, a child sub-reaper: what workers leave behind becomes its own child.
    """
    killed: set[int] = set()
    for _ in range(MAX_KILL_ROUNDS):
        orphans = set(_child_pids()) - set(workers)
        if not orphans:
            break
        found = {pid for orphan in orphans for pid in (orphan, *list_descendants(orphan))}
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        killed |= found
        for pid in orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return len(killed)


def _child_pids() -> Iterator[int]:
    me = os.getpid()
    for pid in list_descendants(me):
        fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if fields and int(fields[1]) == me:
            yield pid
