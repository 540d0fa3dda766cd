"""Recorded bytes against other accounts of the same reading, with a cold cache.

ROOT's file counts requested bytes in a loop without the kit; TTreePerfStats sees the read events;
the kernel counts bytes returned by read() and bytes fetched from the device. The latter includes
whole pages and read-ahead; the pages in the cache afterwards show how much.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import RatioFigure, plot_points, write_rows
from benchmarks.harness.root_scripts import run_in_root
from benchmarks.harness.worker_runs import render_jobs, run_worker
from treehammer.collectors.job_spec import JobSpec
from treehammer.collectors.worker.probes.page_cache import cached_fraction

RELEASE = "6.40.00"
SUBMIT_OPTIONS = (
    *("-P", f"root={RELEASE}", "-P", "cache=cold"),
    *("-P", "branches=1.0,0.02", "-P", "cache_mb=0,3,30"),
    *("-S", "repeats=1", "-S", "rounds=1", "-S", "passes=1"),
)
#: Name of the peer -> the two columns of the ratio.
PEER_COUNTERS = {
    "TFile, bare loop": ("recorded_bytes", "tfile_bytes"),
    "TTreePerfStats": ("recorded_bytes", "perf_bytes"),
    "read() by the kernel": ("recorded_bytes", "kernel_read_chars"),
    "fetched from the device": ("recorded_bytes", "kernel_read_bytes"),
    "fetched / pages then in the cache": ("tree_read_bytes", "resident_bytes"),
}


def measure() -> list[RatioFigure]:
    """Read every variant once, cold; return recorded bytes over the other counts."""
    rows = _read_recorded_bytes()
    counted = _add_tfile_counts(rows)
    for row in rows:
        row.update(counted[row["branches"], row["cache_mb"]])
        del row["url"], row["seed"]
    write_rows("bytes", rows)
    figures, drawn = [], {}
    for name, (ours, peer) in PEER_COUNTERS.items():
        ratios = [row[ours] / row[peer] for row in rows]
        drawn[name] = ratios
        for row, ratio in zip(rows, ratios, strict=True):
            label = f"{row['branches']:.0%} of branches, {row['cache_mb']} MB cache"
            what = name if name.startswith("fetched /") else f"bytes recorded / {name}"
            figures.append(RatioFigure(f"{what}, {label}", ratio))
    plot_points("bytes", "Bytes read: recorded / independent account", "ratio", drawn)
    return figures


def _read_recorded_bytes() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for inputs in render_jobs("ttree-read", Path(folder), *SUBMIT_OPTIONS):
            (execution,) = JobSpec.from_json((inputs / "job.json").read_text()).executions
            (record,) = run_worker(inputs).records
            values: dict[str, Any] = dict(record.values)
            if values["client_cache_state"] != "evicted":
                raise RuntimeError(
                    f"the file could not be evicted: {values['client_cache_method']}"
                )
            (file,) = execution.files
            rows.append(
                {
                    "url": file.url,
                    "seed": execution.seed,
                    "branches": float(values["axis_branches"]),
                    "cache_mb": int(values["axis_cache_mb"]),
                    "recorded_bytes": values["bytes_read"] + values["bytes_read_extra"],
                    "recorded_calls": values["read_calls"],
                    "perf_bytes": values["perfstats_bytes_read"],
                    "perf_calls": values["perfstats_read_calls"],
                    "kernel_read_chars": values["kernel_read_chars"],
                    "kernel_read_bytes": values["kernel_read_bytes"],
                    "tree_read_bytes": values["io_read_bytes"],
                    "resident_bytes": (cached_fraction([file.url]) or 0.0) * file.size,
                }
            )
    return rows


def _add_tfile_counts(rows: list[dict[str, Any]]) -> dict[tuple[float, int], dict[str, Any]]:
    task = {
        "url": rows[0]["url"],
        "seed": rows[0]["seed"],
        "cases": [(row["branches"], row["cache_mb"]) for row in rows],
    }
    found = run_in_root("byte_account_in_root.py", RELEASE, task)
    return {(row["branches"], row["cache_mb"]): row for row in found}
