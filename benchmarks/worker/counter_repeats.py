"""Classification of counters as exact, checked against A/A jobs that read the same data twice."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from benchmarks.harness.root_scripts import dataset_file, run_in_root
from treehammer.collectors.record.exact_counters import (
    ACCESS_MODES,
    COUNTER_NAMES,
    EXACT_COUNTERS,
    find_access_mode,
)

RELEASE = "6.40.00"
DATASET, TREE = "reference-small", "events"
#: A/A jobs of each access mode.
JOBS = 200
CACHES_MB = (0, 3)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks counters``."""
    group = parser.add_argument_group("counters")
    group.add_argument("--counter-jobs", type=int, default=JOBS, help="A/A jobs (%(default)s)")
    group.add_argument("--root-url", default="", help=f"root:// address of {DATASET}'s file")


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Read random selections twice; return the share of exact counters that differ."""
    urls = [dataset_file(DATASET), *filter(None, [options.root_url])]
    task = {"jobs": options.counter_jobs, "urls": urls, "caches_mb": CACHES_MB, "tree": TREE}
    rows = summarize_jobs(run_in_root("counters_in_root.py", RELEASE, task))
    write_rows("counters", rows)
    return list(build_figures(rows))


def summarize_jobs(jobs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Count by access mode and counter the jobs whose two reads differ."""
    recorded: dict[str, Counter[str]] = defaultdict(Counter)
    different: dict[str, Counter[str]] = defaultdict(Counter)
    for job in jobs:
        protocol = "file" if job["file_class"] == "TFile" else "root"
        mode = find_access_mode({"cache_mb": job["cache_bytes"] / 1e6}, protocol)
        assert mode is not None
        for name in (*COUNTER_NAMES, "kernel_read_bytes"):
            if name in job["a"] and name in job["b"]:
                recorded[mode][name] += 1
                different[mode][name] += job["a"][name] != job["b"][name]
    return [
        {
            "access": mode,
            "counter": name,
            "declared": "exact" if name in EXACT_COUNTERS[mode] else "noisy",
            "jobs": recorded[mode][name],
            "different": different[mode][name],
        }
        for mode in ACCESS_MODES
        for name in recorded[mode]
    ]


def build_figures(rows: Iterable[Mapping[str, Any]]) -> Iterable[RatioFigure]:
    """Build a figure per access mode: exact counters that differed, of all recorded."""
    by_mode: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["declared"] == "exact":
            by_mode[row["access"]].append(row)
    for mode, some in by_mode.items():
        jobs = max(row["jobs"] for row in some)
        share = sum(row["different"] for row in some) / sum(row["jobs"] for row in some)
        title = f"{mode}: false differences of {len(some)} exact counters"
        yield RatioFigure(title, share, pairs=jobs)
