"""Figures of passes over all files at once, with the idle time of their threads."""

from __future__ import annotations

import os
import statistics
from typing import Any, Dict, List, Optional, Sequence

from ..pass_summary import PassRead, drop_warm_up, median_or_none, summarize_times
from ..read_passes import FileSurvey
from . import scheduling_bound
from .column_analysis import HistogramSums


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
    counted = drop_warm_up(passes)
    values = summarize_times(passes)
    values["eff_loop"] = statistics.median(
        pass_read.loop_cpu_s / (threads * pass_read.loop_wall_s) for pass_read in counted
    )
    corrected = median_or_none([_correct_efficiency(pass_read, threads) for pass_read in counted])
    values["eff_loop_corrected"] = corrected
    return {name: value for name, value in values.items() if value is not None}


def _correct_efficiency(pass_read: PassRead, threads: int) -> Optional[float]:
    waited = pass_read.run_queue_s
    running = threads * pass_read.loop_wall_s - (waited or 0.0)
    # Threads beside those of the loop may have waited, too: the figure is then unknown.
    return (
        None if waited is None or running < pass_read.loop_cpu_s else pass_read.loop_cpu_s / running
    )


def summarize_idle_time(
    passes: Sequence[PassRead], files: Sequence[FileSurvey], threads: int
) -> Dict[str, float]:
    """Compute the test's own metrics of idle threads, against the bound of the list of files."""
    counted = drop_warm_up(passes)
    clusters = [file.clusters for file in files]
    bound = scheduling_bound.bound_efficiency(clusters, threads)
    extras = {"eff_bound": bound}
    if bound:
        cpu = statistics.median(pass_read.loop_cpu_s for pass_read in counted)
        extras["bound_wall_s"] = cpu / (threads * bound)
    idle = median_or_none([_idle_seconds(pass_read, threads) for pass_read in counted])
    if idle is not None:
        extras["idle_thread_s"] = idle
    return extras


def _idle_seconds(pass_read: PassRead, threads: int) -> Optional[float]:
    """Return the time without use of or wait for a CPU; further threads may make it 0."""
    waited = pass_read.run_queue_s
    if waited is None:
        return None
    return max(0.0, threads * pass_read.loop_wall_s - pass_read.loop_cpu_s - waited)


def check_same_sums(sums: Sequence[HistogramSums]) -> List[str]:
    """Describe the results of each pass, which must be equal."""
    return [f"{histograms.events} events, {histograms.summarize()}" for histograms in sums]


def collect_notes(files: Sequence[FileSurvey]) -> Dict[str, str]:
    """Collect the peculiarities of the files by catalogue name."""
    notes = [note for file in files for note in file.notes]
    return {"content_notes": "; ".join(notes)} if notes else {}
