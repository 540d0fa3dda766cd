"""Counts and latencies of a load by time step, operation and server."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ....collectors.record.latency_histograms import LatencyHistogram
from ....collectors.record.operation_steps import CLIENT, LATE_S, LoadProgress, make_operation_step
from .operation import Flight

#: Rows of one load at most; with more, servers are counted together.
MAX_ROWS = 10_000
#: A step is marked if more than this share of its operations was sent late (10 ms) ...
MAX_LATE_SHARE = 0.01
#: ... or if the generator used this many cores: its Python code runs on one at most.
MAX_CPU = 0.9
#: Answers after a load's end prolong it from this share of its time on.
OVERTIME_SHARE = 0.01


class StepClock(NamedTuple):
    """Division of the load's time into steps.

    Attributes:
        step_s: seconds of a step.
        start_us: start of step 0, microseconds since 1970 UTC.
        first: first step of this generator, to which earlier operations count.
    """

    step_s: float
    start_us: int
    first: int = 0

    def find_step(self, due_s: float) -> int:
        """Return the step of an instant in seconds since step 0 began."""
        # An instant that is computed as the start of a step must not fall into the one before.
        return max(int((due_s + 1e-9) // self.step_s), self.first)


class StepCounts:
    """Operations of one step, name and server."""

    def __init__(self) -> None:
        self.latency = LatencyHistogram()
        self.scheduled = self.late = self.held = self.bytes = 0
        self.lateness_max_s = 0.0
        self.failures: Counter[str] = Counter()

    def add(self, other: StepCounts) -> None:
        """Add the operations of another server."""
        self.latency.add(other.latency)
        self.scheduled += other.scheduled
        self.late += other.late
        self.held += other.held
        self.bytes += other.bytes
        self.lateness_max_s = max(self.lateness_max_s, other.lateness_max_s)
        self.failures.update(other.failures)


class Recorder:
    """Record of a load; :meth:`record` may be called by any thread.

    Args:
        steps: division of time.
        clients: number of clients.
        cores: cores that the generator can use without being the limit.
        observe: called with each operation that ended, and its failure.
        progress: file that states the last step while the load runs; '' for none.
    """

    def __init__(
        self,
        steps: StepClock,
        clients: int,
        *,
        cores: int = 1,
        observe: Optional[Callable[[Flight, str], None]] = None,
        progress: str = "",
    ) -> None:
        self._progress = progress
        self._steps = steps
        self._clients = clients
        self._max_cpu = MAX_CPU * cores
        self._observe = observe
        #: Whether a client sends its next operation when its last has ended.
        self.is_loop = False
        #: Operation -> instant at which the first was due, and at which the last ended.
        self.spans: Dict[str, Tuple[float, float]] = {}
        #: Operation -> instants at which it succeeded.
        self._ends: Dict[str, LatencyHistogram] = {}
        #: Operations that succeeded and failed since the last stated step, and their bytes.
        self._ended = [0, 0, 0]
        self._lock = threading.Lock()
        self._counts: Dict[Tuple[int, str, str], StepCounts] = {}
        self._cpu: Dict[int, float] = {}
        #: Step -> operations that were due in it, and those of them that were sent late.
        self._punctuality: Dict[int, List[int]] = {}

    def record(self, flight: Flight, now_s: float, server: str, failure: str) -> None:
        """Record the end of an operation; ``failure`` is '' after success.

        An operation that was never sent is as late as it is old.
        """
        operation = flight.operation
        sent_s = now_s if flight.sent_s is None else flight.sent_s
        lateness = max(sent_s - operation.due_s, 0.0)
        step = self._steps.find_step(operation.due_s)
        if self._observe is not None:
            self._observe(flight, failure)
        # In a closed loop, waits below a tenth of the answer's time limit no load.
        short_s = 0.1 * (now_s - operation.due_s)
        is_late = lateness > (max(LATE_S, short_s) if self.is_loop else LATE_S)
        with self._lock:
            # The time for which the ceiling held the first operation back is part of the rate.
            begin_s = operation.due_s if operation.held_since_s is None else operation.held_since_s
            first_s, last_s = self.spans.get(operation.name, (begin_s, now_s))
            self.spans[operation.name] = min(first_s, begin_s), max(last_s, now_s)
            if operation.due_s >= self._steps.first * self._steps.step_s:
                punctuality = self._punctuality.setdefault(step, [0, 0])
                punctuality[0] += 1
                punctuality[1] += is_late
            counts = self._counts.setdefault((step, operation.name, server), StepCounts())
            counts.scheduled += 1
            counts.late += is_late
            is_short = 0 < operation.due_s - begin_s < short_s
            counts.held += operation.held_since_s is not None and not is_short
            counts.lateness_max_s = max(counts.lateness_max_s, lateness)
            self._ended[bool(failure)] += 1
            if failure:
                counts.failures[failure] += 1
            else:
                self._ended[2] += operation.bytes
                counts.latency.record(now_s - operation.due_s)
                self._ends.setdefault(operation.name, LatencyHistogram()).record(now_s)
                counts.bytes += operation.bytes

    def record_cpu(self, step: int, cores: float, is_complete: bool) -> None:
        """Record the CPU seconds that the generator used per second of a step; state a complete one."""
        self._cpu[step] = cores
        if not self._progress or not is_complete:
            return
        with self._lock:
            ended, self._ended = self._ended, [0, 0, 0]
        LoadProgress(step, self._steps.step_s, *ended).write(self._progress)

    def list_rows(self, end_s: float) -> List[Dict[str, Any]]:
        """List the rows of the measurement, whose last step ends at ``end_s``."""
        with self._lock:
            keys = self._list_keys(end_s)
            if len(keys) > MAX_ROWS:
                merged: Dict[Tuple[int, str, str], StepCounts] = {}
                for (step, name, _server), counts in self._counts.items():
                    merged.setdefault((step, name, ""), StepCounts()).add(counts)
                self._counts = merged
                keys = self._list_keys(end_s)
            rows = [self._make_row(key, end_s) for key in sorted(keys)]
            return [*rows, *self._list_overtime(rows, end_s)]

    def _list_keys(self, end_s: float) -> Set[Tuple[int, str, str]]:
        """List all operations and servers in every step, unless the rows would be refused as too many."""
        last = self._steps.find_step(max(end_s - 1e-6, 0.0))
        steps, names = range(self._steps.first, last + 1), {key[1:] for key in self._counts}
        every = {(step, *name) for step in steps for name in names} | set(self._counts)
        return every if len(every) <= 1.5 * MAX_ROWS else set(self._counts)

    def _list_overtime(self, rows: List[Dict[str, Any]], end_s: float) -> Iterator[Dict[str, Any]]:
        """Make rows without clients of the time until 99 % of late answers had come.

        No answer comes before the shortest latency.
        """
        for name, ends in sorted(self._ends.items()):
            keys = [key for key in self._counts if key[1] == name]
            latency = LatencyHistogram.sum(self._counts[key].latency for key in keys)
            overtime_s = ends.quantile(0.99) - latency.quantile(0.0) - end_s
            if overtime_s < OVERTIME_SHARE * end_s:
                continue
            steps = {row["step"] for row in rows if row["operation"] == name}
            yield {
                **self._make_row((max(steps) + 1, *max(keys)[1:]), end_s),
                "step_start_us": self._steps.start_us + round(end_s * 1e6),
                "step_s": overtime_s,
                "clients": 0,
                "generator_limited": all(map(self.is_limited, steps)),
            }

    def is_limited(self, step: int) -> bool:
        """Return whether the generator was the limit in a step, preparation before it excluded."""
        scheduled, late = self._punctuality.get(step, (0, 0))
        return late > MAX_LATE_SHARE * scheduled or self._cpu.get(step, 0.0) >= self._max_cpu

    def _make_row(self, key: Tuple[int, str, str], end_s: float) -> Dict[str, Any]:
        step, name, server = key
        counts, step_s = self._counts.get(key) or StepCounts(), self._steps.step_s
        return make_operation_step(
            counts.latency,
            counts.failures,
            side=CLIENT,
            operation=name,
            server=server,
            step=step,
            step_start_us=self._steps.start_us + round(step * step_s * 1e6),
            step_s=max(min(step_s, end_s - step * step_s), 1e-3),
            clients=self._clients,
            scheduled=counts.scheduled,
            late=counts.late,
            held=counts.held,
            lateness_max_s=counts.lateness_max_s,
            generator_cpu=self._cpu.get(step, 0.0),
            generator_limited=self.is_limited(step),
            bytes=counts.bytes,
        )
