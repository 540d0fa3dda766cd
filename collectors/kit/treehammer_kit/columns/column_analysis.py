"""Analysis of columns that RDataFrame and uproot both do: a filter, histograms, and pass figures.

The efficiency of threads is compared with the bound for any scheduler of an event loop over clusters.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import statistics
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..pass_summary import PassRead, compute_share, drop_warm_up, median_or_none, summarize_times
from ..payload_task import PayloadError, PayloadTask, select_branches
from ..read_passes import FileSurvey

# Units of work are clusters, whose cost is taken as proportional to their entries.  Lists of files hold
# the entries of each file's clusters.


def bound_efficiency(files: Sequence[Sequence[int]], threads: int) -> float:
    """Return the share of the threads' time that any schedule leaves for work; 0 without entries."""
    units = [unit for clusters in files for unit in clusters]
    # The least makespan is the largest cluster, or an even share for each thread.
    share = sum(units) / threads
    return share / max(share, *units) if share else 0.0


#: Digits of the histograms' hash in their checksum: 32 bits, short enough to compare by eye.
_CHECKSUM_DIGITS = 8
_KEYS = ("filter", "minimum", "bins", "low", "high")
#: Types in C++ of numbers and of collections of them that RDataFrame makes histograms of.
_NUMBERS = re.compile(
    r"((std::)?(vector|array|list|deque)<|ROOT::(VecOps::RVec|RNTupleCardinality)<)?"
    r"(std::)?(unsigned |signed |long )*"
    r"(bool|char|short|int|long|float|double|u?int\d+_t|[A-Z]\w+_t)(,\d+)?>?(\[\]|(\[\d+\])+)?"
)


@dataclass(frozen=True)
class ColumnAnalysis:
    """The analysis of ``[settings]``.

    Attributes:
        filter: column with one number for each event.
        minimum: events with at least this number are kept.
        bins: number of bins of each histogram, from ``low`` to ``high``.
    """

    filter: str
    minimum: float
    bins: int
    low: float
    high: float

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> ColumnAnalysis:
        """Read the analysis from the test's settings.

        Raises:
            PayloadError: a key is missing or wrong.
        """
        try:
            analysis = cls(
                str(settings["filter"]),
                float(settings["minimum"]),
                int(settings["bins"]),
                float(settings["low"]),
                float(settings["high"]),
            )
            if analysis.bins < 1 or not analysis.low < analysis.high:
                raise ValueError("expected at least one bin, and low below high")
        except (KeyError, TypeError, ValueError) as error:
            message = f"[settings] needs {', '.join(_KEYS)}: {type(error).__name__}: {error}"
            raise PayloadError("payload", "bad-job", "setup", message) from error
        return analysis

    def choose_columns(
        self, names: Sequence[str], find_type: Callable[[str], str], task: PayloadTask
    ) -> Tuple[List[str], List[str]]:
        """Choose columns of numbers to histogram, by the axis ``branches``; note the others.

        Raises:
            PayloadError: a column or the filter does not exist, or has no numbers.
        """
        selected = [*choose_columns(names, task), *choose_columns(names, task, self.filter)]
        candidates = selected if isinstance(task.branches, str) else names
        others = {name for name in candidates if not _NUMBERS.fullmatch(find_type(name))}
        omitted = list(dict.fromkeys(name for name in selected if name in others))
        more = f" and {len(omitted) - 5} more" if len(omitted) > 5 else ""
        notes = [f"there is no histogram of {', '.join(omitted[:5])}{more}"] if omitted else []
        numbers = [name for name in names if name not in others]
        try:
            choose_columns(numbers, task, self.filter)
            return choose_columns(numbers, task), notes
        except PayloadError as error:
            if not omitted:
                raise
            message = f"{notes[0]}. Choose other branches."
            raise PayloadError("payload", "branches", "prepare", message) from error

    def write_code(self, types: Mapping[str, str], columns: Sequence[str]) -> str:
        """Write the analysis as C++ for RDataFrame, with compiled instead of interpreted filters."""
        lines = [
            "void analyze(treehammer::FramePass &pass)",
            "{",
            f"   auto kept = pass.frame.Filter([](const {types[self.filter]} &value) "
            f"{{ return value >= {self.minimum!r}; }}, {{{json.dumps(self.filter, ensure_ascii=False)}}});",
            "   pass.Keep(kept);",
        ]
        for column in columns:
            name = json.dumps(column, ensure_ascii=False)  # escapes quotes and backslashes
            model = f'{{{name}, "", {self.bins}, {self.low!r}, {self.high!r}}}'
            lines.append(f"   pass.Book(kept.Histo1D<{types[column]}>({model}, {name}));")
        return "\n".join([*lines, "}", ""])


def choose_columns(
    names: Sequence[str], task: PayloadTask, request: Union[float, str] = ""
) -> List[str]:
    """Choose columns by a request, by default that of the axis ``branches``.

    Raises:
        PayloadError: a column does not exist.
    """
    positions = select_branches(
        names,
        {},
        request or task.branches,
        seed=task.seed,
        folder=task.folder,
        unreadable=task.unreadable,
    )
    return [names[position] for position in positions]


def check_task(task: PayloadTask) -> None:
    """Refuse axes that an analysis of columns does not obey.

    Raises:
        PayloadError: only a part of the events, or counted instructions.
    """
    if task.events != 1 or task.counting:
        message = "an analysis of columns reads all events: events = 1, no count"
        raise PayloadError("payload", "format", "setup", message)


@dataclass
class HistogramSums:
    """Histograms of a pass: bin contents, with underflow and overflow, by column."""

    events: int = 0
    selected: int = 0
    _bins: Dict[str, List[int]] = field(default_factory=dict)

    def add(self, column: str, bins: Sequence[float]) -> None:
        """Add the bin contents of one file, or of all."""
        before = self._bins.get(column, [0] * len(bins))
        self._bins[column] = [old + round(new) for old, new in zip(before, bins)]  # noqa: B905 - Python 3.9

    def summarize(self) -> Dict[str, float]:
        """Return the test's own metrics: equal for every reader, release and number of threads."""
        lines = [f"{name} {counts}" for name, counts in sorted(self._bins.items())]
        digest = hashlib.sha256("\n".join([f"{self.events} {self.selected}", *lines]).encode())
        return {
            "events_kept": float(self.selected),
            "histogram_entries": float(math.fsum(map(sum, self._bins.values()))),
            "histogram_checksum": float(int(digest.hexdigest()[:_CHECKSUM_DIGITS], 16)),
        }


def sum_run_queues() -> float:
    """Sum the waits of this process' threads for a CPU, in seconds; -1 where unknown."""
    total = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as stream:
                total += int(stream.read().split()[1])
    except (OSError, ValueError, IndexError):
        return -1.0
    return 1e-9 * total


def summarize_threads(passes: Sequence[PassRead], threads: int) -> Dict[str, Any]:
    """Compute the catalogue's times and efficiencies, which count all threads."""
    counted_passes = drop_warm_up(passes)
    values = summarize_times(passes)
    values["eff_loop"] = statistics.median(
        compute_share(pass_read.loop_cpu_s, threads * pass_read.loop_wall_s)
        for pass_read in counted_passes
    )
    values["eff_loop_corrected"] = median_or_none(
        [_correct_efficiency(pass_read, threads) for pass_read in counted_passes]
    )
    return {name: value for name, value in values.items() if value is not None}


def _correct_efficiency(pass_read: PassRead, threads: int) -> Optional[float]:
    waited = pass_read.run_queue_s
    share = compute_share(pass_read.loop_cpu_s, threads * pass_read.loop_wall_s - (waited or 0.0))
    # Threads beside those of the loop may have waited, too: the figure is then unknown.
    return None if waited is None or share > 1 else share


def summarize_idle_time(
    passes: Sequence[PassRead], files: Sequence[FileSurvey], threads: int
) -> Dict[str, float]:
    """Compute the test's own metrics of idle threads, against the bound of the list of files."""
    counted_passes = drop_warm_up(passes)
    bound = bound_efficiency([file.clusters for file in files], threads)
    extras = {"eff_bound": bound}
    if bound:
        cpu = statistics.median(pass_read.loop_cpu_s for pass_read in counted_passes)
        extras["bound_wall_s"] = cpu / (threads * bound)
    waits = [pass_read.run_queue_s for pass_read in counted_passes]
    if None not in waits:
        # The time without use of or wait for a CPU; further threads may make it 0.
        extras["idle_thread_s"] = statistics.median(
            max(0.0, threads * item.loop_wall_s - item.loop_cpu_s - (item.run_queue_s or 0.0))
            for item in counted_passes
        )
    return extras


def collect_notes(files: Sequence[FileSurvey], others: Sequence[str]) -> Dict[str, str]:
    """Collect the peculiarities of the files, and other notes, by catalogue name."""
    notes = [note for file in files for note in file.notes] + [*others]
    return {"content_notes": "; ".join(notes)} if notes else {}
