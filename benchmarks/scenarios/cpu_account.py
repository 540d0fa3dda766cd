"""Recorded CPU against two other accounts of the same processes.

One is the sum of the processes' own clocks (CLOCK_PROCESS_CPUTIME_ID), read at their ends; the other
is the control group's count without the worker's thread. Neither depends on the process that reaps
another, as the worker's account does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import (
    BENCHMARKS_FOLDER,
    RatioFigure,
    median_ratio,
    plot_points,
    write_results,
)
from benchmarks.harness.program_runs import REPOSITORY, TREEHAMMER
from treehammer.collectors.record.measurement_record import Measurement

TEST_FOLDER = BENCHMARKS_FOLDER / "cpu-tree"
CGROUP2_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def measure(_: argparse.Namespace) -> list[RatioFigure]:
    """Run process trees of every shape; return recorded CPU over the other counts."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for inputs in render_jobs(TEST_FOLDER, Path(folder) / "jobs"):
            worker_cpu_s, group_cpu_s, record = run_worker(inputs)
            values = record.values
            rows.append(
                {
                    "shape": str(values["variant_label"]).removeprefix("shape="),
                    "processes": record.extras["made"],
                    "recorded_s": sum(
                        float(str(values[name])) for name in ("payload_user_s", "payload_sys_s")
                    ),
                    "own_clocks_s": record.extras["own_clocks_s"],
                    "cgroup_s": None if group_cpu_s is None else group_cpu_s - worker_cpu_s,
                }
            )
    write_results("cpu", rows)
    return list(_build_figures(rows))


def _build_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    ratios: dict[str, list[float]] = {}
    for account, name in (("cgroup_s", "control group"), ("own_clocks_s", "own clocks")):
        pairs = defaultdict(list)
        for row in rows:
            if row[account] is not None:
                pairs[row["shape"]].append((row["recorded_s"], row[account]))
        for shape, both in pairs.items():
            recorded, counted = zip(*both, strict=True)
            yield median_ratio(f"CPU recorded / {name}, {shape}", recorded, counted)
            ratios[f"{name}, {shape}"] = [a / b for a, b in zip(recorded, counted, strict=True)]
    plot_points("cpu", "CPU of a process tree: recorded / independent account", "ratio", ratios)


def render_jobs(test: Path, folder: Path) -> list[Path]:
    """Render a test into a folder; return the inputs of its timed jobs."""
    command: list[str | Path] = [TREEHAMMER, "render", test, "-o", folder]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    jobs = sorted(folder.glob("*/inputs"), key=lambda path: int(path.parent.name))
    return [path for path in jobs if '"kind": "timed"' in (path / "job.json").read_text()]


def run_worker(inputs: Path) -> tuple[float, float | None, Measurement]:
    """Run the worker on a rendered job of one execution, as in a batch system.

    Returns:
        CPU of the worker's thread without its children; CPU of the worker and its descendants from
        the control group, None if no group could be created; the record.

    Raises:
        RuntimeError: the execution failed or is implausible; with the worker's table.
    """
    group = _create_cgroup()

    def enter_group() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text("0")

    log = inputs / "worker.log"
    with log.open("w") as stream:
        worker = subprocess.Popen(
            [sys.executable, "worker.pyz", "run", "job.json"],
            cwd=inputs,
            stdout=stream,
            stderr=stream,
            preexec_fn=enter_group,  # noqa: PLW1509 - one thread
        )
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    # Ended but not reaped: its accounting is still available.
    worker_cpu_s = int(Path(f"/proc/{worker.pid}/schedstat").read_text().split()[0]) / 1e9
    code = worker.wait()
    group_cpu_s = _remove_cgroup(group)
    (path,) = (inputs / "records").glob("*.json")
    record = Measurement.from_json(path.read_text())
    if code or not record.values["plausible"]:
        raise RuntimeError(log.read_text())
    return worker_cpu_s, group_cpu_s, record


def _create_cgroup() -> Path | None:
    """Create a control group, whose CPU account does not depend on the reaping process."""
    for base in CGROUP2_MOUNTS:
        group = base / f"treehammer-bench-{os.getpid()}"
        if (base / "cgroup.procs").exists():
            try:
                group.mkdir(exist_ok=True)
            except OSError:
                continue
            if (group / "cpu.stat").exists():
                return group
    return None


def _remove_cgroup(group: Path | None) -> float | None:
    if group is None:
        return None
    fields = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    group.rmdir()
    return int(fields["usage_usec"]) / 1e6
