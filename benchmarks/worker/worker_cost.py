"""Cost of the worker beside the payload it runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness.ratio_figures import (
    RatioFigure,
    divide_pairs,
    median_ratio,
    plot_points,
    write_rows,
)
from benchmarks.harness.worker_runs import render_jobs, run_worker
from treehammer.collectors.worker.probes.cpu_calibration import REPORTED_ROUNDS, TIMED_ROUNDS

#: Six jobs of two executions each, all reading everything.
SUBMIT_OPTIONS = (
    *("-P", "root=6.40.00", "-P", "branches=1.0", "-P", "cache_mb=0,30", "-P", "bundle=cache_mb"),
    *("-S", "repeats=6", "-S", "rounds=1"),
)

#: CPU time of a calibration, as a share of the time that it reports.
CALIBRATED_SHARE = TIMED_ROUNDS / REPORTED_ROUNDS


def measure() -> list[RatioFigure]:
    """Run the shipped test's jobs; compare the worker's CPU and memory with the payloads'."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for inputs in render_jobs("ttree-read", Path(folder), *SUBMIT_OPTIONS):
            ran = run_worker(inputs)
            values = [record.values for record in ran.records]
            # Adjacent executions share a calibration: one before the first and one after each.
            calibrations = [values[0]["calibration_before_s"]]
            calibrations += [one["calibration_after_s"] for one in values]
            calibration = CALIBRATED_SHARE * sum(float(str(one)) for one in calibrations)
            rows.append(
                {
                    "executions": len(values),
                    "payload_cpu_s": ran.sum_values("payload_user_s")
                    + ran.sum_values("payload_sys_s"),
                    "payload_wall_s": ran.sum_values("payload_wall_s"),
                    "worker_cpu_s": ran.own_cpu_s - calibration,
                    "calibration_cpu_s": calibration,
                    "payload_peak_bytes": max(int(str(one["max_rss_bytes"])) for one in values),
                    "worker_peak_bytes": ran.peak_bytes,
                }
            )
    write_rows("worker", rows)

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows]

    cpu, memory = column("payload_cpu_s"), column("payload_peak_bytes")
    plot_points(
        "worker",
        "The worker beside its payload",
        "share of the payload's",
        {
            "CPU": divide_pairs(column("worker_cpu_s"), cpu),
            "CPU of calibration": divide_pairs(column("calibration_cpu_s"), cpu),
            "peak memory": divide_pairs(column("worker_peak_bytes"), memory),
        },
        reference=None,
    )
    return [
        median_ratio("worker's CPU without calibration / payload's", column("worker_cpu_s"), cpu),
        median_ratio("CPU of calibration / payload's", column("calibration_cpu_s"), cpu),
        median_ratio("worker's peak memory / payload's", column("worker_peak_bytes"), memory),
    ]
