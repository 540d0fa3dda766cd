"""Operations of load tests: counts and latency histograms of one operation in one time step.

A measurement may carry a list of such rows beside its values.  An operation belongs to the step in
which it was *scheduled*, and its latency counts from that instant, so that a stalled server cannot
hide behind a generator that waits for it.  Histograms have an error below 1 %, in the encoding of
HdrHistogram.

Standard library only, Python 3.9 and later: this module is packed into the worker and the kit.
"""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import zlib
from contextlib import suppress
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from ..json_documents import decode_json
from .metric_catalogue import MAX_WORD, Metric, Value
from .value_checks import is_number, make_check

# --- Latency histograms

#: Name of a latency that people read, in s -> its quantile.
QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99, "max_s": 1.0}
#: Figures of the operations of load tests beside these quantiles, and all, in the order of tables.
OPERATION_FIGURES = (
    "operation",
    "side",
    "active_clients",
    "attempted_hz",
    "observed_hz",
    "failed_fraction",
    "bytes_per_s",
    "measurements",
    "seconds",
    "scheduled",
    "done",
    "failed",
    "late",
    "bytes",
    "failures",
    "steps",
    "limited_steps",
    "held",
    "held_fraction",
    "least_hz",
    "least_bytes_per_s",
)
FIGURE_NAMES = (*OPERATION_FIGURES, *QUANTILES)
#: Largest latency with a bin of its own, in microseconds: one day.
HIGHEST_US = 86_400_000_000

# Layout of an HdrHistogram with two significant digits and microseconds as unit: values below 256
# have bins of their own, and each further power of two has 128 bins.
_DIGITS = 2
_HALF_BITS = 7
_HALF = 1 << _HALF_BITS
_BINS = (HIGHEST_US.bit_length() - _HALF_BITS + 1) * _HALF

# Largest count of a bin that the encoding holds.
_MAX_COUNT = (1 << 63) - 1

_COOKIE = 0x1C849313
_COMPRESSED_COOKIE = 0x1C849314
_HEADER = struct.Struct(">iiiiqqd")
_OUTER_HEADER = struct.Struct(">ii")
#: Bytes of the largest decompressed histogram: nine for each bin.
_MAX_BYTES = _HEADER.size + 9 * _BINS
#: Characters of the largest encoded histogram that is accepted.
MAX_ENCODED = 65_536


class LatencyHistogram:
    """Counts of latencies in microseconds.

    Quantiles, mean and standard deviation are within 0.8 % of those of the recorded values.
    :meth:`encode` writes the compressed V2 encoding of HdrHistogram, which its tools read.
    """

    def __init__(self) -> None:
        self._counts: Dict[int, int] = {}

    def record(self, seconds: float, count: int = 1) -> None:
        """Count a latency, which is cut to between 0 and one day."""
        value = min(max(round(seconds * 1e6), 0), HIGHEST_US)
        index = _find_bin(value)
        self._counts[index] = self._counts.get(index, 0) + count

    def add(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        for index, count in other._counts.items():
            self._counts[index] = min(self._counts.get(index, 0) + count, _MAX_COUNT)

    @classmethod
    def sum(cls, histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
        """Merge histograms."""
        total = cls()
        for histogram in histograms:
            total.add(histogram)
        return total

    @property
    def count(self) -> int:
        """Number of recorded latencies."""
        return sum(self._counts.values())

    def bins(self) -> Iterator[Tuple[float, float, int]]:
        """Iterate over the filled bins: lower edge and upper edge in s, and count."""
        for index in sorted(self._counts):
            low, width = _bin_edges(index)
            yield low / 1e6, (low + width) / 1e6, self._counts[index]

    def quantile(self, fraction: float) -> float:
        """Return the latency in s that ``fraction`` of the values do not exceed.

        Raises:
            ValueError: the histogram is empty.
        """
        total = self.count
        if not total:
            raise ValueError("an empty histogram has no quantiles")
        rank = max(1, min(total, -int(-fraction * total // 1)))
        cumulative = 0
        for index in sorted(self._counts):
            cumulative += self._counts[index]
            if cumulative >= rank:
                break
        return _bin_middle(index) / 1e6

    @property
    def maximum(self) -> float:
        """Largest latency in s."""
        return self.quantile(1.0)

    @property
    def mean(self) -> float:
        """Mean latency in s; the histogram must not be empty."""
        return sum(_bin_middle(i) * n for i, n in self._counts.items()) / self.count / 1e6

    @property
    def standard_deviation(self) -> float:
        """Standard deviation in s; the histogram must not be empty."""
        mean = self.mean * 1e6
        squares = sum((_bin_middle(i) - mean) ** 2 * n for i, n in self._counts.items())
        return float((squares / self.count) ** 0.5 / 1e6)

    def list_quantiles(self) -> Dict[str, Optional[float]]:
        """Return :data:`QUANTILES` in s; None for an empty histogram."""
        has_values = self.count > 0
        return {
            name: self.quantile(part) if has_values else None for name, part in QUANTILES.items()
        }

    def share_above(self, seconds: float) -> float:
        """Return the share of the values above a latency; the histogram must not be empty."""
        limit = seconds * 1e6
        return sum(n for i, n in self._counts.items() if _bin_middle(i) > limit) / self.count

    def encode(self) -> str:
        """Write the histogram as base64 text; equal histograms give equal text."""
        body = bytearray()
        position = 0
        for index in sorted(self._counts):
            if index > position:
                _append_varint(body, -(index - position))
            _append_varint(body, self._counts[index])
            position = index + 1
        header = _HEADER.pack(_COOKIE, len(body), 0, _DIGITS, 1, HIGHEST_US, 1.0)
        packed = zlib.compress(header + bytes(body), 9)
        return base64.b64encode(
            _OUTER_HEADER.pack(_COMPRESSED_COOKIE, len(packed)) + packed
        ).decode()

    @classmethod
    def decode(cls, text: str) -> LatencyHistogram:
        """Read the output of :meth:`encode`.

        Raises:
            ValueError: not a histogram of this layout.
        """
        histogram = cls()
        position = 0
        for number in _read_varints(_unpack(text)):
            if number < 0:
                position -= number
                continue
            if position >= _BINS:
                raise ValueError("histogram: more bins than the layout has")
            if number:
                histogram._counts[position] = number
            position += 1
        return histogram


def _find_bin(value: int) -> int:
    shift = max(value.bit_length() - _HALF_BITS - 1, 0)
    return shift * _HALF + (value >> shift)


def _bin_edges(index: int) -> Tuple[int, int]:
    """Return the lowest value of a bin and its width, in microseconds."""
    shift = max(index // _HALF - 1, 0)
    return (index - shift * _HALF) << shift, 1 << shift


def _bin_middle(index: int) -> int:
    low, width = _bin_edges(index)
    return low + width // 2


def _append_varint(body: bytearray, number: int) -> None:
    """Append a ZigZag LEB128 number; the ninth byte holds eight bits."""
    remaining = (number << 1) ^ (number >> 63)
    for _ in range(8):
        if remaining < 0x80:
            body.append(remaining)
            return
        body.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    body.append(remaining & 0xFF)


def _read_varints(body: bytes) -> Iterator[int]:
    rest, shift = 0, 0
    for byte in body:
        if shift == 56:
            rest |= byte << shift
        else:
            rest |= (byte & 0x7F) << shift
            if byte & 0x80:
                shift += 7
                continue
        yield (rest >> 1) ^ -(rest & 1)
        rest, shift = 0, 0
    if shift:
        raise ValueError("histogram: the last number is cut off")


def _unpack(text: str) -> bytes:
    """Check both headers of an encoded histogram and return its counts."""
    if len(text) > MAX_ENCODED:
        raise ValueError(f"histogram: longer than {MAX_ENCODED} characters")
    try:
        outer = base64.b64decode(text, validate=True)
        cookie, length = _OUTER_HEADER.unpack_from(outer)
        if cookie != _COMPRESSED_COOKIE or length != len(outer) - _OUTER_HEADER.size:
            raise ValueError("histogram: not in HdrHistogram's compressed V2 encoding")
        expander = zlib.decompressobj()
        inner = expander.decompress(outer[_OUTER_HEADER.size :], _MAX_BYTES)
        if not expander.eof or expander.unused_data:
            raise ValueError("histogram: too large, or cut off")
        header = _HEADER.unpack_from(inner)
    except (struct.error, zlib.error, UnicodeEncodeError) as error:
        raise ValueError(f"histogram: {error}") from error
    body = inner[_HEADER.size :]
    if header != (_COOKIE, len(body), 0, _DIGITS, 1, HIGHEST_US, 1.0):
        raise ValueError("histogram: not in microseconds with two significant digits up to a day")
    return body


# --- Operations

#: Seconds behind its schedule from which an operation counts as sent late.
LATE_S = 0.010

CONNECT, LOCATE, STAT, MKDIR, RMDIR = "connect", "locate", "stat", "mkdir", "rmdir"
CREATE, OPEN, CLOSE = "create", "open", "close"
READ, VECTOR_READ = "read", "vector_read"
WRITE, VECTOR_WRITE = "write", "vector_write"
READ_FILE, WRITE_FILE, COPY = "read_file", "write_file", "copy"
DELETE, VANISH = "delete", "vanish"

#: Operations of the shipped tests: connections and namespace, parts of files, whole files, removal.
#: A test may add others: a lower-case word.
OPERATIONS = (
    *(CONNECT, LOCATE, STAT, MKDIR, RMDIR, CREATE, OPEN, CLOSE),
    *(READ, VECTOR_READ, WRITE, VECTOR_WRITE),
    *(READ_FILE, WRITE_FILE, COPY),
    *(DELETE, VANISH),
)
#: Main operation of a load: the first of these that it has.
MAIN_OPERATIONS = (COPY, WRITE_FILE, READ_FILE, WRITE, DELETE, VECTOR_READ, READ, OPEN)
CLIENT, SERVER = "client", "server"

#: Classes of failed operations.
OPERATION_FAILURES = (
    "refused",
    "reset",
    "timeout",
    "stalled",
    "redirect-limit",
    "not-found",
    "not-permitted",
    "credential",
    "no-space",
    "wrong-data",
    "server-error",
    "not-supported",
    "unfinished",
    "other",
)

#: Figure of a storm: files that were neither read nor given up when it ended.
FILES_UNREAD = "files_unread"
#: File in the payload's folder that states the last time step of a load that runs.
LOAD_PROGRESS_NAME = "load-progress.json"
#: Attribute of a job in HTCondor with the same step.
LOAD_ATTRIBUTE = "TreehammerLoad"


class LoadProgress(NamedTuple):
    """The last complete time step of a load that runs; operations on their way are missing.

    Attributes:
        step: number of the step.
        step_s: its length in seconds.
        done: operations that succeeded.
        failed: operations that failed.
        bytes: bytes that they moved.
    """

    step: float
    step_s: float
    done: float
    failed: float
    bytes: float

    @classmethod
    def from_numbers(cls, numbers: Sequence[Any]) -> Optional[LoadProgress]:
        """Return the step with these values; None if they are no step."""
        if len(numbers) != len(cls._fields) or not all(map(is_number, numbers)):
            return None
        progress = cls(*numbers)
        return progress if progress.step_s > 0 else None

    @classmethod
    def read(cls, path: str) -> Optional[LoadProgress]:
        """Read a file of :meth:`write`; None for one that is gone or no such document."""
        try:
            with open(path, encoding="utf-8") as stream:
                document = json.load(stream)
            return cls.from_numbers([document[name] for name in cls._fields])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def from_attribute(cls, value: Any) -> Optional[Tuple[int, LoadProgress]]:
        """Return attempt and step of :data:`LOAD_ATTRIBUTE`, a list or its text; None for others."""
        try:
            items = json.loads(f"[{value.strip(' {}')}]") if isinstance(value, str) else value
            attempt, *numbers = items
        except (ValueError, TypeError):
            return None
        progress = cls.from_numbers(numbers)
        return (attempt, progress) if progress and is_number(attempt) else None

    def to_attribute(self, attempt: int) -> str:
        """Format a ClassAd list without spaces."""
        return "{" + ",".join(map(str, (attempt, *self))) + "}"

    def write(self, path: str) -> None:
        """Write a file, whose readers see the old or the new step; a full disk keeps the old one."""
        with suppress(OSError):
            # Not synchronized with the disk, which would delay operations.
            with open(f"{path}.new", "w", encoding="utf-8") as stream:
                json.dump(self._asdict(), stream)
            os.replace(stream.name, path)


#: Rows of one measurement at most: a day of 10 s steps of two operations.
MAX_OPERATION_STEPS = 20_000

_OPERATION_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")


# One line per metric, as a table; the formatter would use five lines for each.
# fmt: off
def _operation_metrics() -> Tuple[Metric, ...]:
    def text(name: str, meaning: str, **constraints: Any) -> Metric:
        return Metric(name, "text", "", "", meaning, "payload", "payload", required=True, **constraints)

    def count(name: str, meaning: str, better: str = "", unit: str = "1") -> Metric:
        return Metric(name, "int", unit, better, meaning, "payload", "payload", required=True, minimum=0)

    def number(name: str, unit: str, meaning: str, better: str = "") -> Metric:
        return Metric(name, "float", unit, better, meaning, "payload", "payload", required=True)

    return (
        text("side", "'client', or 'server' for the same operation in the server's log.", max_length=MAX_WORD, choices=(CLIENT, SERVER)),
        text("operation", "Operation: open, read, vector_read, read_file, write_file, stat, …", max_length=32, is_identity=True),
        text("server", "Server that performed it; empty where unknown."),
        count("step", "Time step, from 0 at the common start of the campaign's jobs, else at the start of the load."),
        count("step_start_us", "Start of the step, microseconds since 1970 UTC.", unit="us"),
        number("step_s", "s", "Length of the step."),
        count("clients", "Clients that were active in the step."),
        count("scheduled", "Operations that were due in the step."),
        count("done", "Operations of these that succeeded.", "higher"),
        count("failed", "Operations of these that failed, or had not ended when the load stopped.", "lower"),
        count("late", "Operations of these that were sent more than 10 ms behind the schedule.", "lower"),
        Metric("held", "int", "1", "lower", "Operations of these that the door's ceiling held back: the ceiling was the limit, not the storage.", "payload", "payload", minimum=0),
        number("lateness_max_s", "s", "Longest delay of a sending behind the schedule.", "lower"),
        number("generator_cpu", "1", "CPU seconds per second of the step: of the load generator; of the whole machine where a server is watched."),
        Metric("generator_limited", "bool", "1", "", "The generator itself was the limit: the step is marked and enters no average.", "payload", "payload", required=True),
        count("bytes", "Bytes that successful operations moved.", "higher", "B"),
        text("failures", "JSON object: failed operations by class."),
        text("latency", "Latencies of successful operations from the scheduled instant, in microseconds: HdrHistogram, compressed V2 encoding, base64; empty where none was taken.", max_length=MAX_ENCODED),
    )
# fmt: on


#: Columns of the table of operations, declared like the catalogue's metrics.
OPERATION_METRICS = _operation_metrics()
#: Columns without which a row is refused; kits before release 0.3.0 count no operations that were held.
REQUIRED_COLUMNS = tuple(metric.name for metric in OPERATION_METRICS if metric.required)
_CHECKS = {metric.name: make_check(metric) for metric in OPERATION_METRICS}


def make_operation_step(
    latency: LatencyHistogram, failures: Mapping[str, int], **values: Value
) -> Dict[str, Value]:
    """Build the row of one step; ``done`` and ``failed`` follow from the arguments."""
    return {
        **values,
        "done": latency.count,
        "failed": sum(failures.values()),
        "failures": json.dumps(dict(sorted(failures.items()))),
        "latency": latency.encode() if latency.count else "",
    }


def find_operation_problems(operations: Any) -> List[str]:
    """List every reason for rejecting the rows of a measurement; empty if they are valid."""
    if not isinstance(operations, (list, tuple)):
        return ["operations must be a list"]
    if len(operations) > MAX_OPERATION_STEPS:
        return [f"operations has more than {MAX_OPERATION_STEPS} rows; use longer time steps"]
    problems = []
    for number, row in enumerate(operations):
        problems += [f"operations[{number}]: {text}" for text in _find_row_problems(row)]
    return problems


def _find_row_problems(row: Any) -> List[str]:
    if not isinstance(row, dict):
        return ["an object is expected"]
    problems = [f"unknown field {name!r}" for name in row if name not in _CHECKS]
    problems += [f"{name} is missing" for name in REQUIRED_COLUMNS if row.get(name) is None]
    for name, check in _CHECKS.items():
        if row.get(name) is not None and check(row[name]):
            problems.append(f"{name} {check(row[name])}")
    return problems or _find_contradictions(row)


def _find_contradictions(row: Mapping[str, Any]) -> List[str]:
    problems = []
    if not _OPERATION_NAME.match(row["operation"]):
        problems.append("operation must be a lower-case word of at most 32 characters")
    if row["step_s"] <= 0 or row["lateness_max_s"] < 0 or row["generator_cpu"] < 0:
        problems.append("step_s must be positive, lateness_max_s and generator_cpu not negative")
    if row["done"] + row["failed"] > row["scheduled"]:
        problems.append("more operations ended than were scheduled")
    for name in ("late", "held"):
        if (row.get(name) or 0) > row["scheduled"]:
            problems.append(f"more operations were {name} than were scheduled")
    if _sum_failures(row["failures"]) != row["failed"]:
        problems.append("failures must be a JSON object of counts that add up to failed")
    if row["latency"]:
        try:
            total = LatencyHistogram.decode(row["latency"]).count
        except ValueError as error:
            problems.append(f"latency is not a histogram: {error}")
        else:
            if total != row["done"]:
                problems.append(f"latency counts {total} operations, done is {row['done']}")
    return problems


def _sum_failures(text: str) -> int:
    """Sum the counts of a JSON object of failures; -1 if it is none."""
    try:
        failures = decode_json(text)
    except ValueError:
        return -1
    if not isinstance(failures, dict):
        return -1
    counts: Sequence[Any] = list(failures.values())
    if not all(isinstance(n, int) and is_number(n) and n > 0 for n in counts):
        return -1
    return sum(counts)
