"""Rows of operations of the server side."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from .....collectors.record.latency_histograms import LatencyHistogram
from .....collectors.record.operation_steps import SERVER, make_operation_step
from ..recorder import StepClock, StepCounts
from .log_parser import ServerCall


class ServerRecorder:
    """Counts and latencies of a server's calls, by time step and operation.

    A call counts to the step in which the server began it.  Clients may send late, so calls that
    begin in the time after the load count to its last step.  Times in whole seconds count from the
    second in which the load begins.

    Args:
        steps: division of time; earlier calls are not counted.
        duration_s: seconds from step 0 to the end of the load.
        settle_s: seconds after it.
        server: name of the server.

    Attributes:
        calls: calls that were counted.
    """

    def __init__(self, steps: StepClock, duration_s: float, settle_s: float, server: str) -> None:
        self._steps, self._duration_s, self._server = steps, duration_s, server
        self._end_s = duration_s + settle_s
        self._last = steps.find_step(duration_s - 1e-6)
        self._counts: Dict[Tuple[int, str], StepCounts] = {}
        self.calls = 0

    def end_load(self, duration_s: float, settle_s: float) -> None:
        """Set another end of the load, because it ended earlier."""
        self._duration_s, self._end_s = duration_s, duration_s + settle_s
        self._last = self._steps.find_step(duration_s - 1e-6)

    def record(self, call: ServerCall) -> None:
        """Count a call if it began during the load."""
        start_s = (call.start_us - self._steps.start_us) / 1e6
        earliest_s = self._steps.first * self._steps.step_s
        if call.start_us % 1_000_000 == 0:  # probably a log in whole seconds
            earliest_s -= 0.999999
        if not earliest_s <= start_s < self._end_s:
            return
        counts = self._count(start_s, call.operation, 1)
        if call.failure:
            counts.failures[call.failure] = counts.failures.get(call.failure, 0) + 1
        else:
            counts.latency.record(call.duration_us / 1e6)
            counts.bytes += call.bytes

    def _count(self, instant_s: float, operation: str, calls: int) -> StepCounts:
        self.calls += calls
        key = min(self._steps.find_step(instant_s), self._last), operation
        counts = self._counts.setdefault(key, StepCounts())
        counts.scheduled += calls
        return counts

    def list_rows(self) -> List[Dict[str, Any]]:
        """List the rows of the measurement."""
        return [
            make_server_row(
                self._steps,
                self._duration_s,
                step,
                counts.latency,
                counts.failures,
                operation=operation,
                server=self._server,
                scheduled=counts.scheduled,
                bytes=counts.bytes,
            )
            for (step, operation), counts in sorted(self._counts.items())
        ]


def make_server_row(
    steps: StepClock,
    duration_s: float,
    step: int,
    latency: LatencyHistogram,
    failures: Mapping[str, int],
    **values: Any,
) -> Dict[str, Any]:
    """Make a row of the server side; a server keeps no schedule."""
    plain = {
        "clients": 0,
        "late": 0,
        "lateness_max_s": 0.0,
        "generator_cpu": 0.0,
        "generator_limited": False,
    }
    return make_operation_step(
        latency,
        failures,
        side=SERVER,
        step=step,
        step_start_us=steps.start_us + round(step * steps.step_s * 1e6),
        step_s=max(min(steps.step_s, duration_s - step * steps.step_s), 1e-3),
        **{**plain, **values},
    )
