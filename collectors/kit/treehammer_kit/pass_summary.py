"""Summary of all passes: the payload's values of the record."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

#: Must equal the metric catalogue's phases, which a test checks.
PASS_PHASES = ("open", "get_tree", "prepare", "loop", "close")

#: Relative difference of two sums of clocks or counters that is due to rounding.
ROUNDING = 1e-9

#: Equal parts into which the reader divides each bin of the latency histogram: percentiles would
#: otherwise be wrong by up to a factor of 2, the width of a bin.
LATENCY_PARTS = 16

#: Counters of kernel and processor, for readers of any format; -1 where they are not provided.
KERNEL_COUNTERS = (
    "kernel_read_chars",
    "kernel_read_bytes",
    "kernel_read_calls",
    "hw_instructions",
    "hw_cycles",
    "hw_cache_misses",
)
#: Counters of reads that follow each other in the file; -1 where their positions are not known.
DISTANCES = ("read_calls_sequential", "skipped_forward_bytes", "skipped_backward_bytes")
#: Counters of the loop, by the reader's names.
LOOP_COUNTERS = (
    "bytes_read",
    "bytes_read_extra",
    "read_calls",
    "perfstats_bytes_read",
    "perfstats_read_calls",
    "baskets_read",
    "cache_bytes_read",
    "cache_read_calls",
    "cache_missed_bytes",
    "cache_missed_calls",
    "perfstats_read_s",
    "perfstats_unzip_s",
    "perfstats_wall_s",
    "perfstats_cpu_s",
    *KERNEL_COUNTERS,
    *DISTANCES,
    "vector_calls",
    "vector_blocks",
)
#: Terms of catalogue entries rather than entries.
_TERMS = ("vector_calls", "vector_blocks")
#: Classes that send the blocks of a cache as one vector read.
_VECTOR_READERS = ("TNetXNGFile",)
#: Classes that receive by recv(), of which the kernel keeps no account: it would show reads as 0.
_HTTP_READERS = ("TDavixFile", "TCurlFile", "TWebFile")
_RECEIVED = ("kernel_read_chars", "kernel_read_calls")
#: Undefined without a TTreeCache.
_CACHE_COUNTERS = (
    "cache_bytes_read",
    "cache_read_calls",
    "cache_missed_bytes",
    "cache_missed_calls",
)


@dataclass
class FileRead:
    """One file read once.  Seconds and bytes; -1 for values that kernel or ROOT do not provide."""

    phases: Dict[str, Tuple[float, float, float]]
    events: int
    unzipped_bytes: int
    file_size: int
    file_class: str
    cached: bool
    first_byte_s: float
    run_queue_s: float
    counters: Dict[str, float]
    reported_values: Dict[str, float] = field(default_factory=dict)
    data_server: str = ""
    prefetching: bool = False
    cache_size: int = 0
    cache_efficiency: float = 0.0
    cache_efficiency_rel: float = 0.0
    longest_read_s: float = 0.0
    latencies: List[int] = field(default_factory=list)

    def find_counter(self, name: str) -> float:
        """Return a counter of the loop; -1 where it says nothing about this class of file."""
        uncounted = name in _RECEIVED and self.file_class in _HTTP_READERS
        return -1 if uncounted else self.counters[name]


@dataclass
class PassRead:
    """All files of one pass, read in order."""

    files: List[FileRead]
    #: Read in turns with another process, after a warm-up.
    in_turns: bool = False

    def phase_seconds(self, phase: str, index: int) -> float:
        """Sum the seconds of a phase; index 0 is wall, 1 user, 2 system."""
        return sum(file.phases[phase][index] for file in self.files)

    @property
    def loop_wall_s(self) -> float:
        """Wall seconds of the loop."""
        return self.phase_seconds("loop", 0)

    @property
    def running_s(self) -> Optional[float]:
        """Wall seconds of the loop without waits for a CPU; None when unknown."""
        waited = self.run_queue_s
        is_known = waited is not None and waited < self.loop_wall_s
        return self.loop_wall_s - (waited or 0.0) if is_known else None

    @property
    def loop_cpu_s(self) -> float:
        """User and system seconds of the loop."""
        return self.phase_seconds("loop", 1) + self.phase_seconds("loop", 2)

    @property
    def events(self) -> int:
        """Events read."""
        return sum(file.events for file in self.files)

    @property
    def file_size(self) -> int:
        """Bytes of all files."""
        return sum(file.file_size for file in self.files)

    @property
    def unzipped_bytes(self) -> int:
        """Sum of GetEntry's return values."""
        return sum(file.unzipped_bytes for file in self.files)

    @property
    def run_queue_s(self) -> Optional[float]:
        """Seconds of the loop in which the thread was runnable but not running."""
        return _sum_known([file.run_queue_s for file in self.files])

    def sum_counter(self, name: str) -> Optional[float]:
        """Sum a counter of the loop; None where a file lacks it."""
        return _sum_known([file.find_counter(name) for file in self.files])

    def sum_reported(self) -> Dict[str, float]:
        """Sum the values that the payload reported, by name."""
        total: Dict[str, float] = {}
        for file in self.files:
            for name, value in file.reported_values.items():
                total[name] = total.get(name, 0.0) + value
        return total


def _sum_known(values: Sequence[float]) -> Optional[float]:
    return None if any(value < 0 for value in values) else sum(values)


def drop_warm_up(passes: Sequence[PassRead]) -> Sequence[PassRead]:
    """Drop the first pass, which warms up, unless it is the only one or consists of turns."""
    return passes if passes[0].in_turns else passes[1:] or passes


def summarize_tree_passes(passes: Sequence[PassRead]) -> Dict[str, Any]:
    """Compute the catalogue values of TTrees: medians over the counted passes, and every pass."""
    counted_passes = drop_warm_up(passes)
    first = counted_passes[0].files[0]
    values = summarize_times(passes)
    values.update(_summarize_counters(counted_passes))
    values.update(_summarize_latencies(counted_passes))
    values.update(
        loop_unzipped_bytes=counted_passes[0].unzipped_bytes, cache_bytes=first.cache_size
    )
    return {name: value for name, value in values.items() if value is not None}


def summarize_times(passes: Sequence[PassRead]) -> Dict[str, Any]:
    """Compute the catalogue values common to both formats; unknown ones are omitted."""
    counted_passes = drop_warm_up(passes)
    values: Dict[str, Any] = {"passes_done": len(passes), "passes_counted": len(counted_passes)}
    for phase in PASS_PHASES:
        for index, clock in enumerate(("wall", "user", "sys")):
            series = [pass_read.phase_seconds(phase, index) for pass_read in passes]
            values[f"pass_{phase}_{clock}_s"] = series
            values[f"{phase}_{clock}_s"] = statistics.median(series[-len(counted_passes) :])
    values.update(_summarize_rates(passes, counted_passes))
    first = [pass_read.files[0].first_byte_s for pass_read in counted_passes]
    values.update(
        events_read=counted_passes[0].events,
        file_class=counted_passes[0].files[0].file_class,
        data_server=counted_passes[0].files[0].data_server or None,
        first_byte_s=None if min(first) < 0 else statistics.median(first),
    )
    return {name: value for name, value in values.items() if value is not None}


def summarize_extras(passes: Sequence[PassRead]) -> Dict[str, float]:
    """Compute medians of the payload's own values over the counted passes that reported them."""
    reported = [item.sum_reported() for item in drop_warm_up(passes)]
    names = sorted({name for values in reported for name in values})
    return {
        name: statistics.median(values[name] for values in reported if name in values)
        for name in names
    }


def _summarize_rates(passes: Sequence[PassRead], counted: Sequence[PassRead]) -> Dict[str, Any]:
    queue = [pass_read.run_queue_s for pass_read in passes]
    per_event = _median_by(counted, lambda p: _ratio(p.loop_wall_s, p.events))
    return {
        "loop_cpu_s": _median_by(counted, lambda p: p.loop_cpu_s),
        "loop_run_queue_s": _median_by(counted, lambda p: p.run_queue_s),
        "pass_loop_run_queue_s": None if None in queue else queue,
        "cpu_per_event_s": _median_by(counted, lambda p: _ratio(p.loop_cpu_s, p.events)),
        "wall_per_event_s": per_event,
        "event_rate_hz": _ratio(1, per_event),
        "eff_loop": _median_by(counted, lambda p: _share(p.loop_cpu_s, p.loop_wall_s)),
        "eff_loop_corrected": _median_by(counted, lambda p: _share(p.loop_cpu_s, p.running_s)),
    }


def _ratio(numerator: float, denominator: Optional[float]) -> Optional[float]:
    return numerator / denominator if denominator else None


def _share(part: float, whole: Optional[float]) -> Optional[float]:
    return compute_share(part, whole) if whole else None


def compute_share(part: float, whole: float) -> float:
    """Compute a share of at most 1, except for rounding: a larger one is the sign of a wrong clock.

    All shares and efficiencies that come from two clocks are computed here.
    """
    share = part / max(whole, 1e-9)
    return 1.0 if 1 < share <= 1 + ROUNDING else share


def _summarize_counters(passes: Sequence[PassRead]) -> Dict[str, Any]:
    files = [file for pass_read in passes for file in pass_read.files]
    undefined = _TERMS if files[0].cached else (*_TERMS, *_CACHE_COUNTERS)
    values: Dict[str, Any] = {
        name: median_counter(passes, name) for name in LOOP_COUNTERS if name not in undefined
    }
    fetched = values["bytes_read"] + values["bytes_read_extra"]
    values["read_fraction"] = _ratio(fetched, passes[0].file_size)
    values["read_calls_prefetch"] = _count_prefetches(passes, files)
    values.update(_split_read_calls(passes, files, values["read_calls"]))
    if len(passes[0].files) == 1 and files[0].cached:
        # ROOT's ratios come without terms, so those of several files cannot be combined.
        for name in ("cache_efficiency", "cache_efficiency_rel"):
            values[name] = statistics.median(getattr(file, name) for file in files)
    return values


def _count_prefetches(passes: Sequence[PassRead], files: Sequence[FileRead]) -> Optional[float]:
    """Count reads by a prefetching thread: read events reach the loop's thread alone."""
    if not any(file.prefetching for file in files):
        return 0
    counts: List[Optional[float]] = []
    for pass_read in passes:
        calls = pass_read.sum_counter("read_calls")
        loop_calls = pass_read.sum_counter("perfstats_read_calls")
        counts.append(None if calls is None or loop_calls is None else calls - loop_calls)
    return median_or_none(counts, whole=True)


def median_counter(passes: Sequence[PassRead], name: str) -> Optional[float]:
    """Return a counter's median over passes; None where a pass lacks it."""
    return median_or_none(
        [pass_read.sum_counter(name) for pass_read in passes], whole=not name.endswith("_s")
    )


def _split_read_calls(
    passes: Sequence[PassRead], files: Sequence[FileRead], calls: Optional[float]
) -> Dict[str, Optional[float]]:
    """Split reads into single and vector ones, where the file's class makes them distinguishable."""
    if {file.file_class for file in files} == {"TFile"} or not files[0].cached:
        # Only a cache of a remote file issues vector reads.
        return {"read_calls_single": calls, "read_calls_vector": 0}
    if calls is None or any(
        file.prefetching or file.file_class not in _VECTOR_READERS for file in files
    ):
        return {}
    vector = median_counter(passes, "vector_calls") or 0
    blocks = median_counter(passes, "vector_blocks") or 0
    return {
        "read_calls_single": calls - vector,
        "read_calls_vector": vector,
        "vector_chunks": _ratio(blocks, vector),
    }


def _summarize_latencies(passes: Sequence[PassRead]) -> Dict[str, Any]:
    files = [file for pass_read in passes for file in pass_read.files]
    positions = range(len(files[0].latencies))
    parts = [sum(file.latencies[position] for file in files) for position in positions]
    starts = positions[::LATENCY_PARTS]
    values: Dict[str, Any] = {
        "read_latency_hist": [sum(parts[start : start + LATENCY_PARTS]) for start in starts]
    }
    if sum(parts):
        longest = max(file.longest_read_s for file in files)
        values["read_latency_max_s"] = longest
        for name, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99)):
            values[f"read_latency_{name}_s"] = latency_percentile(parts, share, longest)
    return values


def latency_percentile(parts: Sequence[int], share: float, longest_s: float) -> float:
    """Estimate a percentile in seconds to within 6 % (0.1 microseconds below 2 microseconds).

    Args:
        parts: reads by latency, :data:`LATENCY_PARTS` per bin, assumed uniform inside a part.
        share: fraction of the reads below the result; 0.5 is the median.
        longest_s: exact duration of the longest read, an upper bound of the result.

    Raises:
        ValueError: no reads.
    """
    rank = share * sum(parts)
    below = 0
    for position, count in enumerate(parts):
        if count and below + count >= rank:
            # Each read is at the center of its share of the part.
            inside = max(0.0, rank - below - 0.5) / count
            number, part = divmod((position + inside) / LATENCY_PARTS, 1)
            # The first bin begins at 0, not at 1.
            start_us = 2 * part if number == 0 else math.ldexp(1 + part, int(number))
            return min(1e-6 * start_us, longest_s)
        below += count
    raise ValueError("no reads")


def _median_by(
    passes: Sequence[PassRead], measure: Callable[[PassRead], Optional[float]]
) -> Optional[float]:
    return median_or_none([measure(pass_read) for pass_read in passes])


def median_or_none(values: Sequence[Optional[float]], *, whole: bool = False) -> Optional[float]:
    """Return the median, None if any value is; ``whole`` selects an observed value for counts."""
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values):
        return None
    return int(statistics.median_low(known_values)) if whole else statistics.median(known_values)
