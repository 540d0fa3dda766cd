"""Breakdown of wall time from set-up to exit, and the rates and bottleneck of a read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from treehammer.collectors.job_spec import count_threads
from treehammer.collectors.kit.treehammer_kit.pass_summary import compute_share
from treehammer.hctests.definition.model import parse_axes
from treehammer.text_formatting import MEGABYTE, format_share

Row = Mapping[str, Any]


class TimePart(StrEnum):
    """Part of the wall time of an execution, in the order of a table."""

    SETUP = "set-up of the software"
    STAGE_IN = "stage-in"
    START = "loading ROOT, compiling the loop"
    OPEN = "open and metadata"
    RUN_QUEUE = "run queue (waiting for a CPU)"
    THROTTLED = "throttled by the CPU limit"
    READS = "waiting for reads"
    DECOMPRESSION = "decompression"
    DESERIALIZATION = "deserialization and the loop"
    OTHER = "remainder"


_OPENING = ("open", "get_tree", "prepare")
_CPU = ("user", "sys")

#: Columns from which executions are broken down.
BREAKDOWN_COLUMNS = (
    "run_mode",
    "kind",
    "variant",
    "setup_wall_s",
    "setup_cpu_s",
    "stagein_wall_s",
    "stagein_cpu_s",
    "payload_wall_s",
    "payload_user_s",
    "payload_sys_s",
    "payload_run_queue_s",
    "cgroup_throttled_s",
    "import_wall_s",
    "import_user_s",
    "import_sys_s",
    "compile_wall_s",
    *(f"pass_{phase}_{clock}_s" for phase in (*_OPENING, "loop") for clock in ("wall", *_CPU)),
    "pass_loop_run_queue_s",
    "perfstats_read_s",
    "perfstats_unzip_s",
    "ntuple_read_wall_s",
    "ntuple_unzip_wall_s",
    "read_wait_s",
    "file_reads_missing",
)
_TOTAL_CPU = ("payload_user_s", "payload_sys_s", "setup_cpu_s", "stagein_cpu_s")


@dataclass(frozen=True)
class TimeBreakdown:
    """Wall time in seconds by part, summed over executions; the parts add up to it.

    An execution with several threads counts its wall time once for each of them, since its job
    reserves as many CPUs.

    Attributes:
        executions: how many were summed.
        seconds: wall seconds of each part.
        cpu_seconds: CPU seconds within each part, as far as they fit into its wall time.
        cpu_s: CPU seconds of set-up, stage-in and payload, including those of further threads.
    """

    executions: int = 0
    seconds: Mapping[TimePart, float] = field(default_factory=dict)
    cpu_seconds: Mapping[TimePart, float] = field(default_factory=dict)
    cpu_s: float = 0.0

    @property
    def wall_s(self) -> float:
        """Wall seconds of all executions."""
        return math.fsum(self.seconds.values())

    @property
    def efficiency(self) -> float:
        """CPU time divided by the wall time; the mean of ``eff_job`` weighs short executions alike."""
        return compute_share(self.cpu_s, self.wall_s)

    def share(self, part: TimePart) -> float:
        """Return the share of the wall time that a part took."""
        return compute_share(self.seconds.get(part, 0.0), self.wall_s)

    def list_parts(self) -> list[dict[str, Any]]:
        """List the parts as rows of a table, in order."""
        return [
            {
                "part": part.value,
                "wall_s": self.seconds[part],
                "share": self.share(part),
                "without_cpu_s": self.waited(part),
            }
            for part in TimePart
        ]

    def waited(self, part: TimePart) -> float:
        """Return the seconds of a part in which the execution used no CPU."""
        return max(self.seconds.get(part, 0.0) - self.cpu_seconds.get(part, 0.0), 0.0)


def sum_breakdowns(rows: Sequence[Row]) -> TimeBreakdown:
    """Break down executions in solo mode."""
    threads = list(map(_count_row_threads, rows))
    loops = list(map(_LoopTimes.from_row, rows, threads))
    walls = list(map(_split_wall_time, rows, threads, loops))
    # Of the CPU of a part, no more than its wall time counts: the rest is other threads or rounding.
    cpus = [
        {part: min(cpu.get(part, 0.0), wall[part]) for part in TimePart}
        for wall, cpu in zip(walls, map(_split_cpu_time, rows, loops), strict=True)
    ]
    return TimeBreakdown(
        len(rows),
        _sum_parts(walls),
        _sum_parts(cpus),
        math.fsum(sum(_number(row, name) for name in _TOTAL_CPU) for row in rows),
    )


def _sum_parts(breakdowns: Sequence[Mapping[TimePart, float]]) -> dict[TimePart, float]:
    return {part: math.fsum(breakdown[part] for breakdown in breakdowns) for part in TimePart}


def split_loop_time(row: Row) -> dict[TimePart, float]:
    """Split the wall time of the loop in the counted pass whose efficiency is the median.

    Seconds of all passes would contradict the median efficiency where one pass, such as the one that
    warms up, waits longer than all others take.
    """
    threads = _count_row_threads(row)
    walls = row["pass_loop_wall_s"] or ()
    cpus = list(map(sum, zip(*(row[f"pass_loop_{c}_s"] or () for c in _CPU), strict=True)))
    middle = min(
        range(len(walls))[-int(row["passes_counted"]) :],
        key=lambda index: abs(
            compute_share(cpus[index], threads * walls[index]) - (row["eff_loop"] or 0.0)
        ),
        default=0,
    )
    columns = [f"pass_loop_{column}_s" for column in ("wall", *_CPU, "run_queue")]
    one_pass = {name: (row[name] or ())[middle : middle + 1] for name in columns}
    loop = _LoopTimes.from_row({**row, **one_pass}, threads)
    return {
        TimePart.RUN_QUEUE: loop.queue_s,
        TimePart.READS: loop.reads_s,
        TimePart.DECOMPRESSION: loop.unzip_s,
        TimePart.DESERIALIZATION: loop.cpu_s - loop.unzip_s,
        TimePart.OTHER: loop.blocked_s - loop.reads_s,
    }


def _split_wall_time(row: Row, threads: int, loop: _LoopTimes) -> dict[TimePart, float]:
    """Split the wall time of one execution into its parts, in seconds.

    Waits for a CPU are known for the loop and for the whole payload. Those outside the loop are
    taken from the phases there in proportion to their wall time. Time in the loop that was neither
    CPU nor run queue is waiting; as far as ROOT saw it inside reads, it is waiting for reads. Of
    several threads it is not known why they wait, so that theirs is in the remainder.
    """
    outside = max(threads * row["payload_wall_s"] - loop.wall_s, 0.0)
    cpu_outside = _number(row, "payload_user_s") + _number(row, "payload_sys_s") - loop.cpu_s
    queue_outside = _number(row, "payload_run_queue_s") - _measure_loop_queue(row)
    # Of other threads, waits go on while the execution works: only the rest is a wait of its own.
    queue_outside = max(min(queue_outside, outside - max(cpu_outside, 0.0)), 0.0)
    start = threads * (_number(row, "import_wall_s") + _number(row, "compile_wall_s"))
    start = min(start, outside)
    opening = min(threads * _sum_opening(row, ("wall",)), outside - start)
    ran = (outside - queue_outside) / outside if outside else 0.0
    queue = loop.queue_s + queue_outside
    throttled = min(_number(row, "cgroup_throttled_s"), queue)
    return {
        TimePart.SETUP: threads * _number(row, "setup_wall_s"),
        TimePart.STAGE_IN: threads * _number(row, "stagein_wall_s"),
        TimePart.START: start * ran,
        TimePart.OPEN: opening * ran,
        TimePart.RUN_QUEUE: queue - throttled,
        TimePart.THROTTLED: throttled,
        TimePart.READS: loop.reads_s,
        TimePart.DECOMPRESSION: loop.unzip_s,
        TimePart.DESERIALIZATION: loop.cpu_s - loop.unzip_s,
        TimePart.OTHER: (outside - start - opening) * ran + loop.blocked_s - loop.reads_s,
    }


def _split_cpu_time(row: Row, loop: _LoopTimes) -> dict[TimePart, float]:
    """Assign the CPU time of one execution to parts; the compiler counts by its wall time."""
    start = sum(_number(row, n) for n in ("import_user_s", "import_sys_s", "compile_wall_s"))
    opening = _sum_opening(row, _CPU)
    payload = _number(row, "payload_user_s") + _number(row, "payload_sys_s")
    return {
        TimePart.SETUP: _number(row, "setup_cpu_s"),
        TimePart.STAGE_IN: _number(row, "stagein_cpu_s"),
        TimePart.START: start,
        TimePart.OPEN: opening,
        TimePart.DECOMPRESSION: loop.unzip_s,
        TimePart.DESERIALIZATION: loop.cpu_s - loop.unzip_s,
        TimePart.OTHER: max(payload - start - opening - loop.cpu_s, 0.0),
    }


@dataclass(frozen=True)
class _LoopTimes:
    """Seconds of all passes of the loop: ``wall_s`` is the sum of CPU, run queue and blocked."""

    wall_s: float
    queue_s: float
    cpu_s: float
    blocked_s: float
    reads_s: float
    unzip_s: float

    @classmethod
    def from_row(cls, row: Row, threads: int) -> _LoopTimes:
        wall = threads * _sum_passes(row, "pass_loop_wall_s")
        passes = len(row["pass_loop_wall_s"] or ())
        # Both together are more only with threads beside the reserved ones.
        cpu = min(sum(_sum_passes(row, f"pass_loop_{clock}_s") for clock in _CPU), wall)
        queue = min(_measure_loop_queue(row), wall - cpu)
        blocked = wall - queue - cpu
        in_reads = _first_known(row, "perfstats_read_s", "ntuple_read_wall_s", "read_wait_s")
        # Of a command whose reads are not recorded, it is not known what it waits for.
        if in_reads is None and (threads > 1 or row["file_reads_missing"]):
            in_reads = 0.0
        in_unzip = _first_known(row, "perfstats_unzip_s", "ntuple_unzip_wall_s") or 0.0
        # Decompression is timed by the wall clock, which runs on while the thread is in the queue.
        running = cpu / (cpu + queue) if cpu else 0.0
        return cls(
            wall,
            queue,
            cpu,
            blocked,
            blocked if in_reads is None else min(blocked, in_reads * passes),
            min(cpu, in_unzip * passes * running),
        )


def _count_row_threads(row: Row) -> int:
    """Count the threads of an execution; one if its variant is not readable."""
    return _count_variant_threads(str(row["kind"]), str(row["variant"] or "{}"))


@lru_cache(maxsize=1024)
def _count_variant_threads(kind: str, variant: str) -> int:
    try:
        return count_threads(kind, parse_axes(variant))
    except (ValueError, TypeError, AttributeError):
        return 1


def _number(row: Row, name: str) -> float:
    """Return a value; 0 where it is unknown."""
    return float(row[name] or 0.0)


def _sum_opening(row: Row, clocks: Iterable[str]) -> float:
    return sum(
        _sum_passes(row, f"pass_{phase}_{clock}_s") for phase in _OPENING for clock in clocks
    )


def _sum_passes(row: Row, name: str) -> float:
    return math.fsum(row[name] or ())


def _measure_loop_queue(row: Row) -> float:
    """Return the seconds of the loop in the run queue, by wall time if only the payload's are known."""
    if row["pass_loop_run_queue_s"]:
        return _sum_passes(row, "pass_loop_run_queue_s")
    share = compute_share(_sum_passes(row, "pass_loop_wall_s"), _number(row, "payload_wall_s"))
    return share * _number(row, "payload_run_queue_s")


def _first_known(row: Row, *names: str) -> float | None:
    values = (row[name] for name in names)
    return next((float(value) for value in values if value is not None), None)


#: Columns from which the rates are computed.
RATE_COLUMNS = (
    "axis_root",
    "events_read",
    "branches_selected",
    "selected_zip_bytes",
    "loop_unzipped_bytes",
    "ntuple_unzipped_bytes",
    "event_rate_hz",
    "wall_per_event_s",
    "cpu_per_event_s",
    "eff_loop",
    "passes_counted",
    *(f"{phase}_wall_s" for phase in _OPENING),
    *BREAKDOWN_COLUMNS,
)

#: Part of the loop -> kind of bottleneck where it takes the most time, and its name in a list.
_BOTTLENECKS: Mapping[TimePart, tuple[str, str]] = {
    TimePart.READS: ("I/O bound", "waiting for reads"),
    TimePart.DECOMPRESSION: ("CPU bound", "decompression"),
    TimePart.DESERIALIZATION: ("CPU bound", "deserialization and the loop"),
    TimePart.RUN_QUEUE: ("short of CPU", "waiting for a CPU that other work uses"),
    TimePart.OTHER: ("waiting", "waiting outside of reads, or idle threads"),
}
#: Smallest share of the loop that is named.
_NAMED_SHARE = 0.05


@dataclass(frozen=True)
class ReadRates:
    """Rates of one release, of the loop over the events in the median pass.

    Attributes:
        root: value of the root axis.
        events: events read in a pass.
        branches: branches read.
        zipped_bytes: compressed bytes of these branches in the files.
        unzipped_bytes: their bytes after decompression, as ROOT counts them; None with RDataFrame,
            which does not.
        wall_s: wall time of the loop.
        cpu_s: CPU time of the loop.
        open_s: wall time of opening the files and reading metadata.
        cpu_efficiency: CPU time / wall time.
        passes: counted passes.
        shares: part of the loop's wall time in that pass -> its share.
    """

    root: str
    events: int
    branches: int
    zipped_bytes: int
    unzipped_bytes: int | None
    wall_s: float
    cpu_s: float
    open_s: float
    cpu_efficiency: float
    passes: int
    shares: Mapping[TimePart, float]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ReadRates:
        """Compute the rates of one successful execution from a row with :data:`RATE_COLUMNS`."""
        seconds = split_loop_time(row)
        total = sum(seconds.values())
        events = int(row["events_read"])
        unzipped = row["loop_unzipped_bytes"] or row["ntuple_unzipped_bytes"]
        return cls(
            root=str(row["axis_root"]),
            events=events,
            branches=int(row["branches_selected"]),
            zipped_bytes=int(row["selected_zip_bytes"] or 0),
            unzipped_bytes=None if unzipped is None else int(unzipped),
            wall_s=row["wall_per_event_s"] * events,
            cpu_s=row["cpu_per_event_s"] * events,
            open_s=sum(row[f"{phase}_wall_s"] or 0.0 for phase in _OPENING),
            cpu_efficiency=row["eff_loop"],
            passes=int(row["passes_counted"]),
            shares={part: compute_share(value, total) for part, value in seconds.items()},
        )

    @property
    def events_per_s(self) -> float:
        """Events per second of wall time."""
        return self.events / self.wall_s

    @property
    def zipped_mb_per_s(self) -> float:
        """Compressed bytes per second of wall time, in 10^6."""
        return self.zipped_bytes / self.wall_s / MEGABYTE

    @property
    def unzipped_mb_per_s(self) -> float | None:
        """Decompressed bytes per second of wall time, in 10^6."""
        return None if self.unzipped_bytes is None else self.unzipped_bytes / self.wall_s / MEGABYTE

    @property
    def bottleneck(self) -> TimePart:
        """The part of the loop that takes the most time."""
        return max(self.shares, key=lambda part: self.shares[part])

    def describe_bottleneck(self) -> str:
        """Name the bottleneck and the parts, e.g. ``CPU bound: 61 % decompression, 37 % …``."""
        parts = sorted(self.shares, key=lambda part: self.shares[part], reverse=True)
        shares = [
            f"{format_share(self.shares[part])} {_BOTTLENECKS[part][1]}"
            for part in parts
            if self.shares[part] >= _NAMED_SHARE
        ]
        return f"{_BOTTLENECKS[self.bottleneck][0]}: {', '.join(shares)}"

    def flatten(self) -> dict[str, Any]:
        """Return all figures at one level of keys, for programs."""
        return {
            "root": self.root,
            "events": self.events,
            "branches": self.branches,
            "compressed_bytes": self.zipped_bytes,
            "uncompressed_bytes": self.unzipped_bytes,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "open_s": self.open_s,
            "passes": self.passes,
            "events_per_s": self.events_per_s,
            "compressed_mb_per_s": self.zipped_mb_per_s,
            "uncompressed_mb_per_s": self.unzipped_mb_per_s,
            "cpu_efficiency": self.cpu_efficiency,
            "bottleneck": self.bottleneck.value,
            **{f"share_{part.name.lower()}": share for part, share in self.shares.items()},
        }
