"""Clocks and kernel counters of turns that Python code reads."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class TurnFigures:
    """Figures of one turn, or of all turns of a loop."""

    cpu_ns: int = 0
    system_ns: int = 0
    wall_ns: int = 0
    switches_voluntary: int = 0
    switches_involuntary: int = 0
    device_bytes: int = 0

    def write_answer(self, read_bytes: int) -> str:
        """Write the answer of the turn protocol."""
        switches = f"{self.switches_voluntary} {self.switches_involuntary}"
        return f"{self.cpu_ns} {self.wall_ns} {read_bytes} {switches} {self.device_bytes}"


class TurnClock:
    """Measures turns.

    Other threads may also work during the other process' turns: all their CPU time since the last
    turn counts.
    """

    def __init__(self) -> None:
        self._other_threads_ns = _read_other_threads_ns()

    def measure(self, read: Callable[[], None]) -> TurnFigures:
        """Run one turn; return its figures."""
        device_bytes = _read_device_bytes()
        before = resource.getrusage(resource.RUSAGE_SELF)
        wall_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        read()
        cpu_ns = time.thread_time_ns() - cpu_ns
        wall_ns = time.monotonic_ns() - wall_ns
        other_threads_ns = _read_other_threads_ns()
        cpu_ns += max(0, other_threads_ns - self._other_threads_ns)
        self._other_threads_ns = other_threads_ns
        after = resource.getrusage(resource.RUSAGE_SELF)
        return TurnFigures(
            cpu_ns,
            round(1e9 * (after.ru_stime - before.ru_stime)),
            wall_ns,
            after.ru_nvcsw - before.ru_nvcsw,
            after.ru_nivcsw - before.ru_nivcsw,
            max(0, _read_device_bytes() - device_bytes),
        )


def _read_other_threads_ns() -> int:
    """Read the CPU time of this process' other threads."""
    return time.process_time_ns() - time.thread_time_ns()


def _read_device_bytes() -> int:
    """Read the bytes that this process fetched from devices; 0 where the kernel does not count them."""
    try:
        with open("/proc/self/io", encoding="ascii") as stream:
            fields = dict(line.split(": ") for line in stream)
        return int(fields["read_bytes"])
    except (OSError, ValueError, KeyError):
        return 0
