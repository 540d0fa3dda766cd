"""Recorded CPU against two other accounts of the same processes.

One is the sum of the processes' own clocks (CLOCK_PROCESS_CPUTIME_ID), read at their ends; the other
is the control group's count without the worker's thread. Neither depends on who reaps a process, as
the worker's account does.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import (
    RatioFigure,
    divide_pairs,
    median_ratio,
    plot_points,
    write_rows,
)
from benchmarks.harness.worker_runs import render_jobs, run_worker

TEST_FOLDER = Path(__file__).with_name("cpu-tree")


def measure() -> list[RatioFigure]:
    """Run process trees of every shape; return recorded CPU over the other counts."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for inputs in render_jobs(str(TEST_FOLDER), Path(folder)):
            ran = run_worker(inputs)
            (record,) = ran.records
            group = ran.group_cpu_s
            rows.append(
                {
                    "shape": str(record.values["variant_label"]).removeprefix("shape="),
                    "processes": record.extras["made"],
                    "recorded_s": ran.sum_values("payload_user_s")
                    + ran.sum_values("payload_sys_s"),
                    "own_clocks_s": record.extras["own_clocks_s"],
                    "cgroup_s": None if group is None else group - ran.own_cpu_s,
                }
            )
    write_rows("cpu", rows)
    figures, drawn = [], {}
    for peer, name in (("cgroup_s", "control group"), ("own_clocks_s", "own clocks")):
        pairs = defaultdict(list)
        for row in rows:
            if row[peer] is not None:
                pairs[row["shape"]].append((row["recorded_s"], row[peer]))
        for shape, found in pairs.items():
            ours, theirs = zip(*found, strict=True)
            figures.append(median_ratio(f"CPU recorded / {name}, {shape}", ours, theirs))
            drawn[f"{name}, {shape}"] = divide_pairs(ours, theirs)
    plot_points("cpu", "CPU of a process tree: recorded / independent account", "ratio", drawn)
    return figures
