"""Rows of operations of the server side, from calls or from XRootD's monitoring stream of files.

The UDP packets of the f-stream report opens, closes and reads.  A record has no time of its own; each
packet names the window in which all of its records were made.  A server counts the reads of a file
when it is closed.
"""

from __future__ import annotations

import struct
from itertools import product
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

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
            counts.failures[call.failure] += 1
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
        """List the rows of the measurement, also of steps without calls: rates need their time."""
        operations = {operation for _, operation in self._counts}
        for key in product(range(self._steps.first, self._last + 1), operations):
            self._counts.setdefault(key, StepCounts())
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


#: Largest UDP packet.
MAX_PACKET_BYTES = 65_536
FILE_STREAM = b"f"
_CLOSE, _OPEN, _TIME = 0, 1, 2
#: Flags of a close: it has counts of calls.
_HAS_CALLS = 0x02
_HEADER = struct.Struct(">cBHi")
_RECORD = struct.Struct(">BBH")
_WINDOW = struct.Struct(">ii")
_BYTES = struct.Struct(">qqq")
_CALLS = struct.Struct(">iii")
#: Bytes of a record before its own fields: the record's header and the file's identity.
_RECORD_HEADER_BYTES = 8


class StreamEvent(NamedTuple):
    """Calls of one kind that a packet reports, within a second of ``time_us``."""

    time_us: int
    operation: str
    calls: int
    bytes: int


class StreamDecoder:
    """Decodes the packets of one server.

    Attributes:
        lost: packets of the stream that did not arrive.
        invalid: packets that could not be decoded.
    """

    def __init__(self) -> None:
        self.lost = self.invalid = 0
        self._server_start: Optional[int] = None
        self._sequence: Optional[int] = None

    def decode(self, packet: bytes) -> List[StreamEvent]:
        """Decode a packet; packets of other streams are empty."""
        if packet[:1] != FILE_STREAM:
            return []
        try:
            _, sequence, length, started = _HEADER.unpack_from(packet)
            if length != len(packet):
                raise ValueError("truncated")
            events = list(_decode_records(packet))
        except (struct.error, ValueError):
            self.invalid += 1
            return []
        if self._sequence is not None and started == self._server_start:
            self.lost += (sequence - self._sequence - 1) % 256
        self._server_start, self._sequence = started, sequence
        return events


def _decode_records(packet: bytes) -> Iterator[StreamEvent]:
    offset, time_us = _HEADER.size, 0
    while offset < len(packet):
        kind, flags, size = _RECORD.unpack_from(packet, offset)
        if size < _RECORD_HEADER_BYTES:
            raise ValueError("a record without a size")
        fields = offset + _RECORD_HEADER_BYTES
        if kind == _TIME:
            time_us = _WINDOW.unpack_from(packet, fields)[1] * 1_000_000
        elif kind == _OPEN:
            yield StreamEvent(time_us, "open", 1, 0)
        elif kind == _CLOSE:
            yield StreamEvent(time_us, "close", 1, 0)
            moved = _BYTES.unpack_from(packet, fields)
            calls = (0, 0, 0)
            if flags & _HAS_CALLS:
                calls = _CALLS.unpack_from(packet, fields + _BYTES.size)
            for name, count, number in zip(("read", "vector_read", "write"), calls, moved):  # noqa: B905  (Python 3.9)
                if count or number:
                    yield StreamEvent(time_us, name, count, number)
        offset += size


class StreamRecorder(ServerRecorder):
    """Counts of a server's calls as its stream reports them, without latencies."""

    def record_event(self, event: StreamEvent) -> None:
        """Count an event of the load; windows end at whole seconds."""
        at_s = (event.time_us - self._steps.start_us) / 1e6
        if self._steps.first * self._steps.step_s - 1 < at_s < self._end_s:
            counts = self._count(at_s, event.operation, event.calls)
            counts.bytes += event.bytes

    def list_rows(self) -> List[Dict[str, Any]]:
        """List the rows of the measurement."""
        return [{**row, "done": row["scheduled"]} for row in super().list_rows()]
