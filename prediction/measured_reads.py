"""Reads as measured: the terms of one pass of each variant at each door, from its counters."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from treehammer.analysis.descriptive.efficiency_diagnosis import select_usable
from treehammer.analysis.statistics.distributions import student_quantile
from treehammer.analysis.statistics.verdict import ALPHA, MIN_JOBS
from treehammer.collectors.job_spec import (
    BANDWIDTH_AXIS,
    LATENCY_AXIS,
    PAIRED,
    SERVER_CACHE_AXIS,
    THREADS_AXIS,
)
from treehammer.collectors.kit.treehammer_kit.pass_summary import PASS_PHASES
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS
from treehammer.collectors.record.value_checks import is_number, is_variant
from treehammer.collectors.worker.distance import LINK, NETEM
from treehammer.datasets.manifest import RNTUPLE, TTREE
from treehammer.hctests.definition.model import parse_axes
from treehammer.prediction.read_model import (
    COVERAGE,
    PROXY_BYTES_PER_S,
    TRIP_EXTRA_S,
    Distance,
    ReadWork,
    Term,
)

Row = Mapping[str, Any]

_CACHE_AXIS = "cache_mb"
_CLOCKS = ("wall", "user", "sys")
#: Columns of one read.
COLUMNS = tuple(
    dict.fromkeys((
        "kind",
        "run_mode",
        "started_us",
        "test_name",
        "test_path",
        "repository",
        "commit_id",
        "variant",
        "variant_label",
        "site",
        "storage_site",
        "door",
        "door_protocol",
        "dataset",
        "dataset_hash",
        "content_hash",
        *OUTCOME_COLUMNS,
        *(f"{phase}_{clock}_s" for phase in PASS_PHASES for clock in _CLOCKS),
        *(f"pass_{phase}_wall_s" for phase in PASS_PHASES),
        "passes_counted",
        "passes_done",
        "axis_root",
        "root_version",
        "loop_cpu_s",
        "loop_run_queue_s",
        "read_calls",
        "read_calls_prefetch",
        "bytes_read",
        "bytes_read_extra",
        "baskets_read",
        "ntuple_cluster_cache",
        "ntuple_clusters_loaded",
        "ntuple_pages_read",
        "door_rtt_s",
        "origin_version",
        "distance_method",
        "calibration_before_s",
    ))
)  # fmt: skip
_OPENING = tuple(phase for phase in PASS_PHASES if phase != "loop")
#: Round trips by which ROOT 6.38 and 6.40 open a file over root://, get the tree and close the file,
#: once the server is connected: 5 for the file, 1 for a TTree or 5 for an RNTuple, 1 to close.
_OPENING_TRIPS = {TTREE: 7.0, RNTUPLE: 11.0}
_TRIPS_ERROR = 0.5
#: Round trips of connecting to a server, which the first pass alone needs.
_CONNECTING_TRIPS = 3.0
#: Share by which the trips of opening seem to differ where processes wait for a CPU; beyond, something
#: else, such as a redirector, answers too.
_TRIPS_RANGE = 0.5
#: Round trip from which the trips of opening are derived from its waiting.
CLEAR_RTT_S = 5e-3
#: Axes in which the run of an alternative may differ.
_FREE_AXES = frozenset((LATENCY_AXIS, BANDWIDTH_AXIS, "cache_mb", "format", "dataset"))


class UnpredictableError(Exception):
    """A pass cannot be predicted; the message says why."""


@dataclass(frozen=True, eq=False)
class MeasuredRead:
    """One variant at one door: medians over its executions.

    Attributes:
        row: values that all executions share, and medians of numbers.
        axes: the variant.
        wall_s: of one pass, from opening to closing its files.
        spread_s: of the wall time of a further pass, of which :data:`COVERAGE` are half of an interval.
    """

    row: Row
    axes: Mapping[str, Any]
    wall_s: float
    spread_s: float

    @property
    def format(self) -> str:
        """Format of the files."""
        return str(self.axes.get("format", TTREE))

    @cached_property
    def request(self) -> tuple[object, ...]:
        """Protocol and axes, without those in which the run of an alternative may differ."""
        axes = sorted((axis, value) for axis, value in self.axes.items() if axis not in _FREE_AXES)
        return (self.row["door_protocol"], *axes)

    @property
    def cache_mb(self) -> float:
        """MB of TTreeCache; for an RNTuple any but 0 turns its cluster cache on."""
        return float(self.axes.get(_CACHE_AXIS, 30))

    @property
    def cpu_s(self) -> float:
        """CPU of one pass."""
        return math.fsum(
            self.row[f"{phase}_{clock}_s"] or 0.0 for phase in PASS_PHASES for clock in _CLOCKS[1:]
        )

    @property
    def added_rtt_s(self) -> float:
        """Round trip that the axis ``latency_ms`` adds to the door's own, or sets at a link."""
        return float(self.axes.get(LATENCY_AXIS, 0.0)) / 1e3

    @property
    def door_rtt_s(self) -> float:
        """Round trip of the door itself; a link has what the axis sets."""
        is_link = self.row["distance_method"] == LINK and self.added_rtt_s
        return 0.0 if is_link else float(self.row["door_rtt_s"] or 0.0)

    def find_distance(
        self, latency_ms: float | None = None, bandwidth_mbit: float | None = None
    ) -> Distance:
        """Find the distance of these reads, or with other values of its axes.

        Where the kernel does not make it, a proxy does, also as a link, which costs time of its own.
        """
        rate = self.axes.get(BANDWIDTH_AXIS, 0.0) if bandwidth_mbit is None else bandwidth_mbit
        added_s = self.added_rtt_s if latency_ms is None else latency_ms / 1e3
        own_s = 0.0 if added_s and self.row["distance_method"] == LINK else self.door_rtt_s
        bytes_per_s = float(rate) * 1e6 / 8 if rate else math.inf
        if (added_s or rate) and self.row["distance_method"] != NETEM:
            return Distance(own_s + added_s + TRIP_EXTRA_S, min(bytes_per_s, PROXY_BYTES_PER_S))
        return Distance(own_s + added_s, bytes_per_s)

    def build_work(self, files: int = 1) -> ReadWork:
        """Build the work of one pass.

        Args:
            files: how many it opens.

        Raises:
            UnpredictableError: its reads are not counted, or overlap in unknown ways.
        """
        self._check_model()
        distance = self.find_distance()
        has_cluster_cache = bool(self.row["ntuple_cluster_cache"])
        work = ReadWork(
            cpu_s=self.cpu_s,
            loop_cpu_s=self.row["loop_cpu_s"],
            calls=self.row["read_calls"],
            byte_count=(self.row["bytes_read"] or 0.0) + (self.row["bytes_read_extra"] or 0.0),
            opening_trips=self._count_opening_trips(distance, files),
            clusters_ahead=(self.row["ntuple_clusters_loaded"] or 0.0) * has_cluster_cache,
            trips_error=files * _TRIPS_ERROR,
            # How long the loop waited for a CPU was up to other work on the node.
            spread_s=math.hypot(self.spread_s, (self.row["loop_run_queue_s"] or 0.0) / 2),
        )
        terms = work.split_wall_time(distance)
        return replace(work, rest_s=max(self.wall_s - math.fsum(terms.values()), 0.0))

    def _count_opening_trips(self, distance: Distance, files: int) -> float:
        """Count the round trips of opening: ROOT's, or those that the waiting at a distance shows."""
        trips = files * _OPENING_TRIPS[self.format]
        trips += _CONNECTING_TRIPS if self.row["passes_done"] == 1 else 0.0
        if distance.rtt_s < CLEAR_RTT_S:
            return trips
        waiting_s = math.fsum(
            sign * (self.row[f"{phase}_{clock}_s"] or 0.0)
            for phase in _OPENING
            for clock, sign in zip(_CLOCKS, (1, -1, -1), strict=True)
        )
        measured = waiting_s / distance.rtt_s
        is_usual = self.row["door_protocol"] == "root" and abs(measured / trips - 1) < _TRIPS_RANGE
        return trips if is_usual else measured

    def _check_model(self) -> None:
        row, axes = self.row, self.axes
        is_counted = None not in (row["root_version"], row["read_calls"], row["loop_cpu_s"])
        prefetches = row["read_calls_prefetch"] or axes.get("prefetch")
        has_threads = axes.get(THREADS_AXIS, 1) != 1
        is_copied = axes.get("access") == "staged"
        problems = (
            (not is_counted, "its payload does not count ROOT's read calls"),
            (prefetches, "a prefetching thread reads, and its overlap is not recorded"),
            (has_threads, "its threads wait for each other in ways that are not recorded"),
            (is_copied, "it reads a copy: only the copying depends on the distance"),
            (
                SERVER_CACHE_AXIS in axes or row["origin_version"],
                "a cache answers, and how often it asks the origin is not counted",
            ),
        )
        for applies, problem in problems:
            if applies:
                raise UnpredictableError(problem)

    def check_distance(self) -> None:
        """Check that other distances can be predicted.

        Raises:
            UnpredictableError: the file is local, or the client's round trips are unknown.
        """
        protocol = self.row["door_protocol"]
        if protocol == "file":
            raise UnpredictableError(
                "a file of the node is at no distance: measure through a server"
            )
        if protocol != "root" and self.find_distance().rtt_s < CLEAR_RTT_S:
            raise UnpredictableError(
                f"the round trips by which ROOT opens a file over {protocol} are known only from a run "
                f"at a distance: measure with -P {LATENCY_AXIS}=20"
            )

    def describe_terms(self, terms: Mapping[Term, float], work: ReadWork) -> str:
        """Describe the terms of a predicted pass that take a thousandth of it."""
        total = math.fsum(seconds for seconds in terms.values() if seconds > 0)
        details = {
            Term.OPENING: f" ({work.opening_trips:.0f} round trips)",
            Term.CALLS: f" ({work.calls:,.0f} × 1 round trip)",
            Term.TRANSFER: f" ({work.byte_count / 1e6:,.1f} MB)",
        }
        parts = [
            f"{seconds:.3g} s {term}{details.get(term, '')}"
            for term, seconds in terms.items()
            if abs(seconds) >= total / 1000
        ]
        return " + ".join(parts).replace("+ -", "− ")


def group_reads(rows: Iterable[Row]) -> list[MeasuredRead]:
    """Group good timed solo executions by variant, dataset, site and door, the newest group first."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in select_usable(rows):
        is_timed = row["run_mode"] != PAIRED and row["loop_wall_s"] is not None
        if is_timed and _has_numbers(row["variant"]):
            names = ("test_name", "variant", "dataset_hash", "site", "storage_site", "door")
            groups[tuple(row[name] for name in names)].append(row)
    reads = [_build_read(group) for group in groups.values()]
    return sorted(reads, key=lambda read: -int(read.row["started_us"]))


def _has_numbers(variant: str) -> bool:
    """Return whether a variant, which others may have sent, has numbers where the terms need them."""
    axes = parse_axes(variant) if is_variant(variant) else {_CACHE_AXIS: None}
    return all(is_number(axes.get(name, 0)) for name in (_CACHE_AXIS, LATENCY_AXIS, BANDWIDTH_AXIS))


def _build_read(rows: Sequence[Row]) -> MeasuredRead:
    newest = max(rows, key=lambda row: int(row["started_us"]))
    passes = [wall_s for row in rows for wall_s in _list_pass_walls(row)]
    walls = [math.fsum(row[f"{phase}_wall_s"] or 0.0 for phase in PASS_PHASES) for row in rows]
    spread = _estimate_spread(passes)
    if len(walls) >= MIN_JOBS:
        spread = max(spread, _estimate_spread(walls))
    medians = {name: _find_median(rows, name) for name, value in newest.items() if is_number(value)}
    row = {**newest, **medians, "started_us": newest["started_us"]}
    axes = parse_axes(str(newest["variant"]))
    return MeasuredRead(row, axes, statistics.median(walls), spread)


def _estimate_spread(walls: Sequence[float]) -> float:
    """Estimate the spread of a further wall time; Student's quantile allows for few of them."""
    count = len(walls)
    if count < 2:
        return 0.0
    factor = math.sqrt(1 + 1 / count) * student_quantile(count - 1, ALPHA / 2)
    return statistics.stdev(walls) * factor / COVERAGE


def _find_median(rows: Sequence[Row], name: str) -> float:
    return float(statistics.median(row[name] for row in rows if row[name] is not None))


def _list_pass_walls(row: Row) -> list[float]:
    """List the wall time of each counted pass."""
    phases = [row[f"pass_{phase}_wall_s"] or () for phase in PASS_PHASES]
    walls = [math.fsum(seconds) for seconds in zip_longest(*phases, fillvalue=0.0)]
    count = int(row["passes_counted"] or 0)
    return walls[-count:] if count else []
