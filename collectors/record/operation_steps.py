"""Operations of load tests: counts and latency histograms of one operation in one time step.

A measurement may carry a list of such rows beside its values.  An operation belongs to the step in
which it was *scheduled*, and its latency counts from that instant, so that a stalled server cannot
hide behind a generator that waits for it.

Standard library only, Python 3.9 and later: this module is packed into the worker and the kit.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..json_documents import decode_json
from .latency_histograms import MAX_ENCODED, QUANTILES, LatencyHistogram
from .metric_catalogue import MAX_WORD, Metric, Value
from .value_checks import is_number, make_check

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
MAIN_OPERATIONS = (COPY, WRITE_FILE, READ_FILE, WRITE, DELETE, VECTOR_READ, READ, OPEN, STAT)
CLIENT, SERVER = "client", "server"

#: Figure of a storm: files that were neither read nor given up when it ended.
FILES_UNREAD = "files_unread"
#: File in the payload's folder that states the last time step of a load that runs.
LOAD_PROGRESS_NAME = "load-progress.json"
#: Attribute of a job in HTCondor with the same step.
LOAD_ATTRIBUTE = "TreehammerLoad"


class LoadProgress(NamedTuple):
    """The last complete time step of a load that runs, with the operations that ended in it.

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
        count("clients", "Clients that were active in the step; 0 in rows of servers, and of the time after a load in which late answers came."),
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
    scheduled = row["scheduled"]
    counts = {name: row.get(name) or 0 for name in ("late", "held")}
    is_word, failures = _OPERATION_NAME.match(row["operation"]), _sum_failures(row["failures"])
    are_measured = row["step_s"] > 0 and min(row["lateness_max_s"], row["generator_cpu"]) >= 0
    rules = (
        ("operation must be a lower-case word of at most 32 characters", is_word),
        ("step_s must be positive, lateness_max_s and generator_cpu not negative", are_measured),
        ("more operations ended than were scheduled", row["done"] + row["failed"] <= scheduled),
        *(
            (f"more operations were {name} than were scheduled", count <= scheduled)
            for name, count in counts.items()
        ),
        (
            "failures must be a JSON object of counts that add up to failed",
            failures == row["failed"],
        ),
    )
    problems = [problem for problem, is_met in rules if not is_met]
    try:
        total = LatencyHistogram.decode(row["latency"]).count if row["latency"] else row["done"]
    except ValueError as error:
        return [*problems, f"latency is not a histogram: {error}"]
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
