"""Processes of local jobs: their identity, and killing all of them (Linux).

A job is identified by its folder in the spool.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from treehammer.collectors.job_spec import JOB_MARK_VARIABLE

#: Rounds of killing: processes may fork while the others are being killed.
MAX_KILL_ROUNDS = 20


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


def job_marker(job: Path) -> dict[str, str]:
    """Return the environment variable that marks all processes of a job.

    Its value is the job's folder rather than the batch id: another queue may use the same ids.
    """
    return {JOB_MARK_VARIABLE: str(job.absolute())}


def find_marked_processes(job: Path) -> Iterator[int]:
    """Yield the pids of a job's live processes, in any session or process group."""
    ((name, value),) = job_marker(job).items()
    for process in psutil.process_iter(["environ"]):
        environment = process.info["environ"] or {}
        if environment.get(name) == value and process.pid != os.getpid():
            yield process.pid


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may just have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_job_processes(job: Path) -> int:
    """Kill every process of a job and return their number."""
    killed: set[int] = set()
    for _ in range(MAX_KILL_ROUNDS):
        pids = set(find_marked_processes(job))
        if not pids:
            break
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        killed |= pids
    return len(killed)


def kill_orphans(workers: Collection[int]) -> int:
    """Kill every child of this process except ``workers``, with its descendants.

    For the runner, a child sub-reaper: processes that outlive a worker become its children.

    Returns:
        Number of killed processes.
    """
    killed: set[int] = set()
    for _ in range(MAX_KILL_ROUNDS):
        orphans = [child for child in psutil.Process().children() if child.pid not in workers]
        if not orphans:
            break
        pids = {orphan.pid for orphan in orphans}
        for orphan in orphans:
            with suppress(psutil.NoSuchProcess):
                pids |= {process.pid for process in orphan.children(recursive=True)}
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        killed |= pids
        for orphan in orphans:
            with suppress(ChildProcessError):
                os.waitpid(orphan.pid, 0)
    return len(killed)
