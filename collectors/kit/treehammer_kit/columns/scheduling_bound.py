"""Makespans of an event loop over clusters: the bound for any scheduler, and those of two strategies.

Units of work are clusters, whose cost is taken as proportional to their entries.  Lists of files hold
the entries of each file's clusters.
"""

from __future__ import annotations

import heapq
from typing import List, Sequence


def bound_makespan(files: Sequence[Sequence[int]], threads: int) -> float:
    """Return the least possible makespan: the largest cluster, or an even share for each thread."""
    units = [unit for clusters in files for unit in clusters]
    return max(max(units, default=0), sum(units) / threads)


def list_makespan(files: Sequence[Sequence[int]], threads: int) -> int:
    """Return the makespan if each thread takes the next cluster of the list when it is free."""
    ends = [0] * threads
    for clusters in files:
        for unit in clusters:
            heapq.heappush(ends, heapq.heappop(ends) + unit)
    return max(ends)


def batch_makespan(files: Sequence[Sequence[int]], threads: int) -> int:
    """Return the makespan of RDataFrame's scheduler for RNTuples (ROOT 6.34 to 6.40).

    While there are as many files as threads, each thread takes one and all wait for the slowest.  The
    threads then share the remaining files, each a part of consecutive clusters.
    """
    remaining = [list(clusters) for clusters in files if clusters]
    makespan = 0
    while remaining:
        batch, remaining = remaining[:threads], remaining[threads:]
        if len(batch) == threads:
            makespan += max(map(sum, batch))
        else:
            makespan += max(_split_tail(batch, threads))
    return makespan


def _split_tail(files: Sequence[Sequence[int]], threads: int) -> List[int]:
    """Return the work of each thread that shares files, of which there are fewer than threads."""
    parts: List[int] = []
    for number, clusters in enumerate(files):
        is_last = number == len(files) - 1
        slots = threads - len(parts) if is_last else threads // len(files)
        quotient, remainder = divmod(len(clusters), slots)
        first = 0
        for slot in range(min(slots, len(clusters))):
            end = first + quotient + (slot < remainder)
            parts.append(sum(clusters[first:end]))
            first = end
    return parts


def bound_efficiency(files: Sequence[Sequence[int]], threads: int) -> float:
    """Return the share of the threads' time that the bound leaves for work; 0 without entries."""
    longest = bound_makespan(files, threads)
    # Rounding may lift a full share above one by its last digit.
    return min(1.0, sum(map(sum, files)) / (threads * longest)) if longest else 0.0
