"""Supervision of one payload, with accounting of its whole process tree.

The worker is a child subreaper: orphans of the payload become the worker's children instead of
init's.  So every process is reaped either by its parent, which inherits its resource usage, or by
the worker, and the sum over the processes that the worker reaps is the kernel's account of the whole
tree.  (For a parent that ignores SIGCHLD the kernel drops its children's usage.)

CPU, faults, switches and I/O come from that account and are exact.  Sizes and run-queue waits exist
only while a process lives and are sampled.
"""

from __future__ import annotations

import ctypes
import errno
import os
import selectors
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Set, TextIO

from ... import process_stats
from ...job_spec import ExecutionLimits
from ...record.outcome import ExecutionError, Failure
from ..child_processes import BoundedLog, StopSignals, die_with_parent
from ..probes.energy import SHARED_BY_TURNS, EnergyMeter

#: Metric of I/O -> its name in /proc.
_IO_COUNTERS = {
    "io_read_chars": "rchar",
    "io_write_chars": "wchar",
    "io_read_bytes": "read_bytes",
    "io_write_bytes": "write_bytes",
}
#: Seconds between two samples of the tree.
SAMPLING_INTERVAL_S = 0.2
#: The same for payloads that take turns on one core.
TURNS_SAMPLING_INTERVAL_S = 1.0
#: Wall limits that a payload which takes turns may take, as it waits for another one.
WALL_LIMITS = 2
#: Children reaped in a row: orphans that fork endlessly must not keep the worker busy.
MAX_REAPED_AT_ONCE = 100
#: Seconds between SIGTERM and SIGKILL.
TERMINATION_GRACE_S = 5.0
#: Seconds for killing processes that outlive the payload.
CLEANUP_TIMEOUT_S = 10.0

#: ``errno`` values when the node cannot start another process.
FORK_FAILURE_ERRNOS = (errno.EAGAIN, errno.ENOMEM)

_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ProcessOutcome:
    """End of a payload's process tree.

    Either ``exit_code`` or ``exit_signal`` is set.  ``ended_by`` is the reason why the worker ended the
    payload: ``timeout``, ``memory``, ``stop``, or '' when it ended by itself.  ``survivors`` counts
    processes that outlived the payload and were killed.  ``values`` has all that is recorded, by
    catalogue name.
    """

    wall_s: float
    exit_code: Optional[int]
    exit_signal: Optional[int]
    core_dumped: bool
    ended_by: str
    survivors: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class LaunchedPayload:
    """Differences of a payload that takes turns with another from one that runs alone.

    Attributes:
        environment: additional variables.
        core: core on which it runs; None for any.
    """

    environment: Mapping[str, str]
    core: Optional[int]

    def start_process(self) -> None:
        """Prepare the new process, before it runs the payload."""
        die_with_parent()
        if self.core is not None:
            os.sched_setaffinity(0, {self.core})


def become_subreaper() -> None:
    """Make this process adopt the orphans among its descendants.

    Raises:
        OSError: not supported by the kernel (before Linux 3.4).
    """
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def run_payload(
    command: List[str],
    env: Mapping[str, str],
    folder: str,
    limits: ExecutionLimits,
    signals: StopSignals,
    out: BoundedLog,
    err: BoundedLog,
    launched: Optional[LaunchedPayload] = None,
) -> ProcessOutcome:
    """Run ``command`` in a new session until its whole process tree has ended.

    Raises:
        ExecutionError: the command cannot be started.
        OSError: the node cannot start a process; ``errno`` is in :data:`FORK_FAILURE_ERRNOS`.
    """
    meter = None if launched else EnergyMeter()
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**env, **(launched.environment if launched else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=launched.start_process if launched else die_with_parent,  # noqa: PLW1509 - the worker has one thread
        )
    except OSError as error:
        if error.errno in FORK_FAILURE_ERRNOS:
            raise
        raise ExecutionError(
            Failure(
                "payload",
                "start",
                "start",
                f"{command[0]} cannot be started: {error.strerror}. Check that it exists on this "
                "node and is executable, and that its first line names an interpreter.",
            )
        ) from error
    if launched:
        limits = replace(limits, wall_s=WALL_LIMITS * limits.wall_s)
    return _ProcessSupervisor(process, start, limits, signals, out, err, meter).run()


class _ProcessSupervisor:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        start: float,
        limits: ExecutionLimits,
        signals: StopSignals,
        out: BoundedLog,
        err: BoundedLog,
        meter: Optional[EnergyMeter],
    ) -> None:
        self._process = process
        self._meter = meter
        self._energy: Mapping[str, Any] = {"energy_missing": SHARED_BY_TURNS}
        self._start = start
        self._limits = limits
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fd, selectors.EVENT_READ, None)
        for stream, log in ((process.stdout, out), (process.stderr, err)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, log)
        self._end: Optional[float] = None
        self._status = 0
        self._ended_by = ""
        self._kill_at: Optional[float] = None
        self._user = self._sys = 0.0
        self._max_rss = self._peak_rss = 0
        self._switches = [0, 0]
        self._faults = [0, 0]
        self._io: Optional[Counter[str]] = Counter()
        # Opened while it runs, as the account of an ended process belongs to root.
        self._account: Optional[TextIO] = None
        with suppress(OSError):
            self._account = open(f"/proc/{process.pid}/io", encoding="ascii")  # noqa: SIM115
        self._waits: Dict[int, int] = {}
        self._seen: Set[int] = {process.pid}
        # Turns, whose energy is not metered, are disturbed less by sampling.
        self._sampling_interval_s = SAMPLING_INTERVAL_S if meter else TURNS_SAMPLING_INTERVAL_S

    def run(self) -> ProcessOutcome:
        try:
            self._watch_payload()
            if self._meter is not None:
                self._energy = self._meter.finish()
        finally:
            # Also when the log could not be written: no process may remain.
            survivors = self._kill_survivors()
        for key in list(self._selector.get_map().values()):
            while key.data is not None and self._copy_output(key):
                pass
        self._selector.close()
        for stream in (self._process.stdout, self._process.stderr, self._account):
            if stream is not None:
                stream.close()
        return self._build_outcome(survivors)

    def _watch_payload(self) -> None:
        """Supervise the payload until it has ended."""
        next_sample = self._start
        while self._end is None:
            self._wait_for_events(max(0.0, next_sample - time.monotonic()))
            self._reap_children()
            now = time.monotonic()
            if self._end is None and now >= next_sample:
                self._sample_tree()
                next_sample = now + self._sampling_interval_s
            if self._end is None:
                self._enforce_limits(now)

    # -- waiting and output

    def _wait_for_events(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._signals.drain()
            else:
                self._copy_output(key)

    def _copy_output(self, key: selectors.SelectorKey) -> bool:
        """Copy available output to the log; False without any, for now or at its end."""
        try:
            data = os.read(key.fd, 65536)
        except BlockingIOError:
            return False
        if data:
            key.data.write(data)
            return True
        self._selector.unregister(key.fileobj)
        return False

    # -- accounting

    def _reap_children(self, at_most: int = MAX_REAPED_AT_ONCE) -> None:
        """Reap ended children, after reading the statistics that vanish with them."""
        for _ in range(at_most):
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            now = time.monotonic()
            account = self._account if ended.si_pid == self._process.pid else None
            io = process_stats.read_io(ended.si_pid, account)
            if self._io is not None and io:
                self._io.update(io)
            else:  # one process that is hidden makes the sum wrong
                self._io = None
            self._waits.update(process_stats.read_run_queue_waits(ended.si_pid))
            pid, status, usage = os.wait4(ended.si_pid, 0)
            self._seen.add(pid)
            self._user += usage.ru_utime
            self._sys += usage.ru_stime
            self._max_rss = max(self._max_rss, usage.ru_maxrss * 1024)
            self._switches[0] += usage.ru_nvcsw
            self._switches[1] += usage.ru_nivcsw
            self._faults[0] += usage.ru_minflt
            self._faults[1] += usage.ru_majflt
            if pid == self._process.pid:
                self._end, self._status = now, status
                self._process.returncode = status  # reaped here: Popen must not wait for it

    def _list_tree(self) -> List[int]:
        tree = process_stats.list_descendants(os.getpid())
        self._seen.update(tree)
        return tree

    def _sample_tree(self) -> None:
        if self._meter is not None:
            self._meter.update()
        tree = self._list_tree()
        for pid in tree:
            self._waits.update(process_stats.read_run_queue_waits(pid))
        limit = self._limits.memory_bytes
        bounds = [self._peak_rss, limit] if limit > 0 else [self._peak_rss]
        resident = process_stats.measure_tree_bytes(tree, min(bounds))
        self._peak_rss = max(self._peak_rss, resident)
        if 0 < limit < resident and not self._ended_by:
            self._ended_by = "memory"
            self._signal_tree(signal.SIGKILL, tree)

    # -- ending

    def _enforce_limits(self, now: float) -> None:
        limit = self._limits.wall_s
        if not self._ended_by and (self._signals.stopped_by or 0 < limit < now - self._start):
            self._ended_by = "stop" if self._signals.stopped_by else "timeout"
            self._signal_tree(signal.SIGTERM, self._list_tree())
            self._kill_at = now + TERMINATION_GRACE_S
        if self._kill_at is not None and now >= self._kill_at:
            self._signal_tree(signal.SIGKILL, self._list_tree())

    def _signal_tree(self, number: signal.Signals, tree: List[int]) -> None:
        for pid in tree:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _kill_survivors(self) -> int:
        """Kill the processes that outlived the payload; return their number."""
        survivors: Set[int] = set()
        deadline = time.monotonic() + CLEANUP_TIMEOUT_S
        self._reap_children()
        while time.monotonic() < deadline:
            tree = self._list_tree()
            if not tree:
                break
            survivors.update(tree)
            self._kill_groups(tree)
            self._reap_children(len(tree))
            time.sleep(0.005)
        return len(survivors)

    def _kill_groups(self, tree: List[int]) -> None:
        """Kill by process group, which no member can escape by forking.

        Each group is killed once: a kill visits every member, possibly many thousands.
        """
        groups: Set[int] = set()
        for pid in tree:
            with suppress(ProcessLookupError):
                groups.add(os.getpgid(pid))
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def _build_outcome(self, survivors: int) -> ProcessOutcome:
        assert self._end is not None
        wall_s, signaled = self._end - self._start, os.WIFSIGNALED(self._status)
        exit_code = None if signaled else os.WEXITSTATUS(self._status)
        exit_signal = os.WTERMSIG(self._status) if signaled else None
        values = {
            "payload_wall_s": wall_s,
            "payload_user_s": self._user,
            "payload_sys_s": self._sys,
            "payload_run_queue_s": sum(self._waits.values()) / 1e9 if self._waits else None,
            "max_rss_bytes": self._max_rss,
            "tree_peak_rss_bytes": max(self._peak_rss, self._max_rss),
            "ctx_voluntary": self._switches[0],
            "ctx_involuntary": self._switches[1],
            "page_faults_minor": self._faults[0],
            "page_faults_major": self._faults[1],
            "processes": len(self._seen),
            "exit_code": exit_code,
            "exit_signal": exit_signal,
            **({name: self._io[key] for name, key in _IO_COUNTERS.items()} if self._io else {}),
            **self._energy,
        }
        core_dumped = signaled and os.WCOREDUMP(self._status)
        return ProcessOutcome(
            wall_s, exit_code, exit_signal, core_dumped, self._ended_by, survivors, values
        )
