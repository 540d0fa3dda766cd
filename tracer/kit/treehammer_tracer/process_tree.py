"""One run of a command: its time, the kernel's account of its processes, and its threads."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Set, TextIO

from ....collectors.process_stats import list_descendants, read_io, read_resident_bytes

_PR_SET_CHILD_SUBREAPER = 36
#: Seconds between two samples of threads and memory.
_SAMPLING_INTERVAL_S = 0.1


class Command(NamedTuple):
    """A command: as text, as program and arguments, and its environment."""

    text: str
    words: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class CommandRun:
    """Figures of one run and all its processes, from the kernel's account of each at its end.

    Attributes:
        status: exit code, or the negative number of the signal that ended it.
        pids: processes that were seen: a parent's account does not say how many it reaped.
        io: counters of ``/proc/PID/io``; None where the kernel hides them.
        threads: mean number of threads; None for a run without samples.
        peak_bytes: largest resident size of all processes together, sampled.
        survivors: processes that outlived the command and were killed.
    """

    status: int = 0
    wall_ns: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    faults_minor: int = 0
    faults_major: int = 0
    switches_voluntary: int = 0
    switches_involuntary: int = 0
    pids: Set[int] = field(default_factory=set)
    io: Optional[Dict[str, int]] = field(default_factory=dict)
    threads: Optional[float] = None
    threads_peak: Optional[int] = None
    peak_bytes: Optional[int] = None
    survivors: int = 0

    @property
    def cpu_s(self) -> float:
        """User and system time."""
        return self.user_s + self.system_s

    @property
    def threads_idle(self) -> Optional[float]:
        """Mean number of threads that did not run; None for a run without samples."""
        if self.threads is None or not self.wall_ns:
            return None
        return max(0.0, self.threads - 1e9 * self.cpu_s / self.wall_ns)

    def count_io(self, name: str) -> Optional[int]:
        """Return a counter of ``/proc/PID/io``; None where the kernel hides it."""
        return None if self.io is None else self.io.get(name, 0)

    def add_ended_child(self, accounts: Mapping[int, TextIO]) -> int:
        """Wait for a child's end and add its account; return its process id.

        A process that was reaped by its parent is in the account of that.

        Raises:
            ChildProcessError: there is none.
        """
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        counters = read_io(ended.si_pid, accounts.get(ended.si_pid))
        if self.io is not None and counters:
            self.io = {name: self.io.get(name, 0) + count for name, count in counters.items()}
        else:
            self.io = None
        pid, status, usage = os.wait4(ended.si_pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        self.user_s += usage.ru_utime
        self.system_s += usage.ru_stime
        self.faults_minor += usage.ru_minflt
        self.faults_major += usage.ru_majflt
        self.switches_voluntary += usage.ru_nvcsw
        self.switches_involuntary += usage.ru_nivcsw
        self.pids.add(pid)
        return pid


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    cores: Optional[Sequence[int]] = None,
    *,
    is_sampled: bool,
    output: Optional[int] = None,
) -> CommandRun:
    """Run a command to its end, and then end whatever it left behind.

    Args:
        command: program and arguments.
        environment: its complete environment.
        folder: its working folder.
        cores: cores that it may use; None for those of this process.
        is_sampled: whether threads and memory are sampled, which takes CPU of another process.
        output: descriptor for its output; None for that of this process.

    Raises:
        OSError: it does not start.
    """
    # Orphans become children of this process, so that their times are in its account.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = CommandRun()
    if cores is not None:
        with suppress(OSError):  # pinned by a launch, whose commands have one thread by default
            os.sched_setaffinity(0, cores)
    start = time.monotonic_ns()
    process = subprocess.Popen(
        list(command), env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL, stdout=output
    )
    accounts: Dict[int, TextIO] = {}  # opened while a process runs: later, its own belongs to root
    with suppress(OSError):
        accounts[process.pid] = open(f"/proc/{process.pid}/io", encoding="ascii")  # noqa: SIM115
    sampler = _Sampler(run.pids) if is_sampled else None
    while run.add_ended_child(accounts) != process.pid:
        pass
    for account in accounts.values():
        account.close()
    status, run.wall_ns = run.status, time.monotonic_ns() - start
    process.returncode = status  # reaped here: Popen must not wait for it
    if sampler:
        sampler.finish(run)
    survivors: Set[int] = set()
    with suppress(ChildProcessError):
        while True:  # they may have started others in the meantime
            descendants = list_descendants(os.getpid())
            survivors.update(descendants)
            for pid in descendants:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for _ in range(max(1, len(descendants) // 2)):
                run.add_ended_child(accounts)
    run.status, run.survivors = status, len(survivors)
    return run


class _Sampler:
    """Samples threads and memory of all processes below this one, in a thread."""

    def __init__(self, pids: Set[int]) -> None:
        self._pids = pids
        self._end = threading.Event()
        self._thread_s = 0.0
        self._threads_peak = self._peak_bytes = 0
        self._start = self._last = time.monotonic()
        self._threads = 1
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._end.wait(_SAMPLING_INTERVAL_S):
            threads = resident = 0
            for pid in list_descendants(os.getpid()):
                self._pids.add(pid)
                with suppress(OSError):
                    threads += len(os.listdir(f"/proc/{pid}/task"))
                resident += read_resident_bytes(pid)
            self._add(threads or self._threads)
            self._threads_peak = max(self._threads_peak, threads)
            self._peak_bytes = max(self._peak_bytes, resident)

    def _add(self, threads: int) -> None:
        """Add the time since the last sample, over which the earlier number of threads ran."""
        now = time.monotonic()
        self._thread_s += self._threads * (now - self._last)
        self._last, self._threads = now, threads

    def finish(self, run: CommandRun) -> None:
        """End sampling, and add means and peaks to a run; one shorter than an interval has none."""
        self._end.set()
        self._thread.join()
        if self._peak_bytes:
            self._add(0)
            run.threads = self._thread_s / (self._last - self._start)
            run.threads_peak = self._threads_peak
            run.peak_bytes = self._peak_bytes
