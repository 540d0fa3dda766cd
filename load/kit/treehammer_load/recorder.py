"""Counts and latencies of a load by time step, operation and server, and the figures of one load.

Only the steps in which the generator was not the limit enter the figures.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from ....collectors.record.latency_histograms import LatencyHistogram
from ....collectors.record.operation_steps import (
    CLIENT,
    DELETE,
    LATE_S,
    MAIN_OPERATIONS,
    LoadProgress,
    make_operation_step,
)
from .operation import Flight

#: Rows of one load at most; with more, servers are counted together.
MAX_ROWS = 10_000
#: A step is marked if more than this share of its operations was sent late (10 ms) ...
MAX_LATE_SHARE = 0.01
#: ... or if the generator used this many cores: its Python code runs on one at most.
MAX_CPU = 0.9


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
        self.failures: Dict[str, int] = {}

    def add(self, other: StepCounts) -> None:
        """Add the operations of another server."""
        self.latency.add(other.latency)
        self.scheduled += other.scheduled
        self.late += other.late
        self.held += other.held
        self.bytes += other.bytes
        self.lateness_max_s = max(self.lateness_max_s, other.lateness_max_s)
        for name, count in other.failures.items():
            self.failures[name] = self.failures.get(name, 0) + count


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
        #: Operation -> instant at which the first was due, and at which the last ended.
        self._spans: Dict[str, Tuple[float, float]] = {}
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
        key = step, operation.name, server
        if self._observe is not None:
            self._observe(flight, failure)
        with self._lock:
            # The time for which the ceiling held the first operation back is part of the rate.
            begin_s = operation.due_s if operation.held_since_s is None else operation.held_since_s
            first_s, last_s = self._spans.get(operation.name, (begin_s, now_s))
            self._spans[operation.name] = min(first_s, begin_s), max(last_s, now_s)
            if operation.due_s >= self._steps.first * self._steps.step_s:
                punctuality = self._punctuality.setdefault(step, [0, 0])
                punctuality[0] += 1
                punctuality[1] += lateness > LATE_S
            counts = self._counts.setdefault(key, StepCounts())
            counts.scheduled += 1
            counts.late += lateness > LATE_S
            counts.held += operation.held_since_s is not None
            counts.lateness_max_s = max(counts.lateness_max_s, lateness)
            if failure:
                counts.failures[failure] = counts.failures.get(failure, 0) + 1
            else:
                counts.latency.record(now_s - operation.due_s)
                counts.bytes += operation.bytes

    def record_cpu(self, step: int, cores: float) -> None:
        """Record the CPU seconds that the generator used per second of a step, which has ended."""
        self._cpu[step] = cores
        if self._progress:
            self._write_progress(step)

    def _write_progress(self, step: int) -> None:
        """State the operations of a step that have ended; those on their way are missing."""
        with self._lock:
            counts = [counts for key, counts in self._counts.items() if key[0] == step]
            progress = LoadProgress(
                step,
                self._steps.step_s,
                sum(part.latency.count for part in counts),
                sum(sum(part.failures.values()) for part in counts),
                sum(part.bytes for part in counts),
            )
        progress.write(self._progress)

    @property
    def spans(self) -> Mapping[str, Tuple[float, float]]:
        """Operation -> its first instant and its last end, in seconds from the start of step 0."""
        return dict(self._spans)

    def list_rows(self, end_s: float, *, every_step: bool = False) -> List[Dict[str, Any]]:
        """List the rows of the measurement.

        Args:
            end_s: end of the last step.
            every_step: add rows for steps in which no operation was due, so that the time of
                operations that last for several steps is complete.
        """
        with self._lock:
            last = self._steps.find_step(max(end_s - 1e-6, 0.0))
            keys = self._list_keys(last) if every_step else self._counts
            if len(keys) > MAX_ROWS:
                self._merge_servers()
                keys = self._list_keys(last) if every_step else self._counts
            return [self._make_row(key, end_s) for key in sorted(keys)]

    def _list_keys(self, last: int) -> Set[Tuple[int, str, str]]:
        """List the keys of all operations and servers from their first steps to the last one."""
        first: Dict[Tuple[str, str], int] = {}
        for step, name, server in self._counts:
            first[name, server] = min(step, first.get((name, server), step))
        return {
            (step, name, server)
            for (name, server), begin in first.items()
            for step in range(begin, last + 1)
        } | set(self._counts)

    def _merge_servers(self) -> None:
        merged: Dict[Tuple[int, str, str], StepCounts] = {}
        for (step, name, _server), counts in self._counts.items():
            merged.setdefault((step, name, ""), StepCounts()).add(counts)
        self._counts = merged

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


# --- Figures of a load

Row = Mapping[str, Any]

_ROUND_TRIPS = 5
_CONNECT_TIMEOUT_S = 2.0


def summarize_rows(rows: Sequence[Row]) -> Dict[str, float]:
    """Summarize the main operation of a load: the writes, deletions or reads, else the opens.

    Steps in which the generator was the limit are counted and otherwise left out; if all were,
    neither rates nor latencies remain.
    """
    counted_rows = [row for row in _choose_rows(rows) if not row["generator_limited"]]
    return _summarize_main(rows, _count_seconds(counted_rows))


def _summarize_main(rows: Sequence[Row], seconds: float) -> Dict[str, float]:
    """Summarize the main operation; ``seconds`` is the time of the steps that count."""
    selected_rows = _choose_rows(rows)
    counted_rows = [row for row in selected_rows if not row["generator_limited"]]
    scheduled = sum(row["scheduled"] for row in selected_rows)
    figures = {
        "limited_steps": float(
            len({row["step"] for row in selected_rows if row["generator_limited"]})
        ),
        "late_share": sum(row["late"] for row in selected_rows) / max(scheduled, 1),
    }
    if counted_rows:
        figures.update(_summarize_rates(counted_rows, seconds))
    histogram = merge_latencies(counted_rows)
    if histogram.count:
        figures.update(_summarize_latencies(histogram))
    return figures


def summarize_loop(
    rows: Sequence[Row],
    spans: Mapping[str, Tuple[float, float]],
    step_s: float,
    *,
    by_server: bool = False,
) -> Dict[str, float]:
    """Summarize a closed loop, in which as many operations are due as are done.

    The total time and bytes are of all steps; the time is left out after a failure.  Rates are of
    the time from the first instant to the last end, without steps that are left out.

    Args:
        rows: operations.
        spans: operation -> first instant and last end, in seconds from the start of step 0.
        step_s: length of a step.
        by_server: add the slowest and fastest server's rate.
    """
    selected_rows = _choose_rows(rows)
    if not selected_rows:
        return _summarize_main(rows, 0.0)
    span = spans[selected_rows[0]["operation"]]
    limited = {row["step"] for row in selected_rows if row["generator_limited"]}
    seconds = _count_busy_seconds(span, step_s, limited)
    figures = _summarize_main(rows, seconds)
    figures.pop("attempted_hz", None)
    figures["total_mb"] = sum(row["bytes"] for row in selected_rows) / 1e6
    if not sum(row["failed"] for row in rows):
        figures["total_s"] = span[1] - span[0]
    counted_rows = [row for row in selected_rows if not row["generator_limited"]]
    histogram = merge_latencies(counted_rows)
    if histogram.count:
        figures["latency_deviation_s"] = histogram.standard_deviation
    if by_server and counted_rows:
        figures.update(_summarize_servers(counted_rows, seconds))
    return figures


def _count_busy_seconds(
    span: Tuple[float, float], step_s: float, limited: Collection[int]
) -> float:
    """Count the seconds of a span outside the steps in which the generator was the limit."""
    first_s, last_s = span
    left_out = sum(
        max(0.0, min(last_s, (step + 1) * step_s) - max(first_s, step * step_s)) for step in limited
    )
    return max(last_s - first_s - left_out, 1e-6)


def _count_seconds(rows: Sequence[Row]) -> float:
    return float(sum({row["step"]: row["step_s"] for row in rows}.values()))


def summarize_calls(rows: Sequence[Row], names: Sequence[str]) -> Dict[str, float]:
    """Summarize each of several operations: ``NAME_p50_s`` and ``NAME_p99_s``."""
    return _find_quantiles(rows, names, {"p50": 0.5, "p99": 0.99})


def summarize_far_tails(rows: Sequence[Row], names: Sequence[str]) -> Dict[str, float]:
    """Summarize the slowest operations of each name: ``NAME_p999_s``."""
    return _find_quantiles(rows, names, {"p999": 0.999})


def _find_quantiles(
    rows: Sequence[Row], names: Sequence[str], quantiles: Mapping[str, float]
) -> Dict[str, float]:
    figures: Dict[str, float] = {}
    for name in names:
        unlimited_rows = [
            row for row in rows if row["operation"] == name and not row["generator_limited"]
        ]
        histogram = merge_latencies(unlimited_rows)
        if histogram.count:
            for title, fraction in quantiles.items():
                figures[f"{name}_{title}_s"] = histogram.quantile(fraction)
    return figures


def summarize_transfers(rows: Sequence[Row], calls: Sequence[str]) -> Dict[str, float]:
    """Summarize transfers without data: each call, failures of all, and deletions as their rate."""
    counted_rows = [row for row in rows if not row["generator_limited"]]
    limited = {row["step"] for row in rows if row["generator_limited"]}
    figures = {**summarize_calls(rows, calls), "limited_steps": float(len(limited))}
    deletions = [row for row in counted_rows if row["operation"] == DELETE]
    for name, group in (("achieved_hz", deletions), ("failed_share", counted_rows)):
        rates = _summarize_rates(group, _count_seconds(group))
        if name in rates:
            figures[name] = rates[name]
    return figures


def _choose_rows(rows: Sequence[Row]) -> List[Row]:
    names = {row["operation"] for row in rows}
    name = next((name for name in MAIN_OPERATIONS if name in names), "")
    return [row for row in rows if row["operation"] == name]


def merge_latencies(rows: Sequence[Row]) -> LatencyHistogram:
    """Merge the latencies of rows."""
    return LatencyHistogram.sum(
        LatencyHistogram.decode(row["latency"]) for row in rows if row["latency"]
    )


def _summarize_servers(rows: Sequence[Row], seconds: float) -> Dict[str, float]:
    """Compare servers; failures without a known server count for none."""
    moved: Dict[str, int] = {}
    for row in rows:
        moved[row["server"]] = moved.get(row["server"], 0) + row["bytes"]
    rates = [size / seconds / 1e6 for server, size in moved.items() if server]
    if not rates:
        return {}
    return {
        "servers": float(len(rates)),
        "server_mb_per_s_min": min(rates),
        "server_mb_per_s_max": max(rates),
    }


def _summarize_rates(rows: Sequence[Row], seconds: float) -> Dict[str, float]:
    scheduled, completed = (sum(row[name] for row in rows) for name in ("scheduled", "done"))
    if not scheduled:  # all began in steps that are left out
        return {}
    return {
        "attempted_hz": scheduled / seconds,
        "achieved_hz": completed / seconds,
        "achieved_mb_per_s": sum(row["bytes"] for row in rows) / seconds / 1e6,
        "failed_share": sum(row["failed"] for row in rows) / scheduled,
    }


def _summarize_latencies(histogram: LatencyHistogram) -> Dict[str, float]:
    return {
        "latency_mean_s": histogram.mean,
        "latency_p50_s": histogram.quantile(0.5),
        "latency_p95_s": histogram.quantile(0.95),
        "latency_p99_s": histogram.quantile(0.99),
        "latency_max_s": histogram.maximum,
    }


def measure_round_trip(rows: Sequence[Row]) -> Dict[str, float]:
    """Measure the round trip to the server that was used most, as the shortest TCP connect."""
    used: Dict[str, int] = {}
    for row in rows:
        used[row["server"]] = used.get(row["server"], 0) + row["done"]
    server = max(used, key=lambda name: used[name], default="")
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        return {}
    times: List[float] = []
    for _ in range(_ROUND_TRIPS):
        spent = _time_connect(host.strip("[]"), int(port))
        if spent is None:
            return {}
        times.append(spent)
    return {"round_trip_s": min(times)}


def _time_connect(host: str, port: int) -> Optional[float]:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0], socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            start = time.monotonic()
            connection.connect(address[4])
            return time.monotonic() - start
    except OSError:
        return None
