"""Punctuality of one load generator, and the highest rate that it keeps, by operation and door.

Server and generator share this machine, so the figures need an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import RatioFigure, print_table, write_results
from benchmarks.harness.program_runs import set_up_software
from treehammer import config
from treehammer.collectors.record.operation_steps import LatencyHistogram
from treehammer.testbed import lifecycle, workspace
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)

#: Version of the XRootD client.
CLIENT = "xrootd:6.2.1"
#: Share of operations that may be sent more than 10 ms late.
MAX_LATE = 0.01
#: Study S1: opens per second, and readers of 2.5 MB every 10 s.
OPENS_HZ, READERS = 200, 800
FILE_SIZE = 50_000_000
#: Clients, and the size of reads, of the highest rates.
CLIENTS, SMALL_READ_KB = 16, 4
#: Rates that are tried for the highest one, and seconds for each.
RATES_HZ = (250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12_000, 16_000)
RATE_SECONDS = 4
#: Operations whose highest rate is measured, with the door.
SCALED = (("open", "root"), ("read", "root"), ("open", "http"), ("read", "http"), ("read", "file"))
#: Seconds that a generator may take beside its load.
EXTRA_S = 120


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--load-seconds", type=int, default=60, help="load: length of each load (default: 60)"
    )
    parser.add_argument(
        "--load-rates", type=int, default=len(RATES_HZ), help="load: rates tried (default: all)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure punctuality, then the highest rates."""
    rows: list[dict[str, Any]] = []
    figures = []
    loads: tuple[tuple[str, str, dict[str, Any]], ...] = (
        (f"{OPENS_HZ} opens/s", "open", {"clients": 100, "rate_hz": OPENS_HZ / 100}),
        (f"{READERS} readers", "read", {"clients": READERS, "period_s": 10, "block_kb": 2500}),
    )
    with tempfile.TemporaryDirectory() as folder, _run_storage() as storage:
        generator = LoadGenerator(Path(folder), storage)
        for title, operation, axes in loads:
            row = generator.run(operation, options.load_seconds, "root", axes)
            rows.append({"load": title, **row})
            name = f"{title}: share sent more than 10 ms late"
            figures.append(RatioFigure(name, row["late_share"], upper_bound=MAX_LATE))
        for operation, door in SCALED:
            rate = _find_highest_rate(
                generator, operation, door, RATES_HZ[: options.load_rates], rows
            )
            figures.append(RatioFigure(f"highest punctual rate /s, {operation}, {door}", rate))
    write_results("load", rows)
    print_table(rows)
    return figures


def _find_highest_rate(
    generator: LoadGenerator,
    operation: str,
    door: str,
    rates: tuple[int, ...],
    rows: list[dict[str, Any]],
) -> float:
    """Raise the rate until operations are late or missing; return the last good one."""
    best = 0.0
    for rate in rates:
        axes: dict[str, Any] = {"clients": CLIENTS, "rate_hz": rate / CLIENTS}
        if operation == "read":
            axes = {"clients": CLIENTS, "period_s": CLIENTS / rate, "block_kb": SMALL_READ_KB}
        row = generator.run(operation, RATE_SECONDS, door, axes)
        rows.append({"load": f"{operation} at {rate}/s, {door}", **row})
        if row["late_share"] >= MAX_LATE or row["achieved_hz"] < 0.99 * rate:
            break
        best = row["achieved_hz"]
    return best


@contextmanager
def _run_storage() -> Iterator[XrootdStorage]:
    """Run the storage of one site."""
    box = workspace.define_workspace(f"bench{os.getpid()}", 1, config.load_settings())
    storage = XrootdStorage(box)
    with lifecycle.run_testbed(box, [storage], print):
        yield storage


class LoadGenerator:
    """Runs the load generator of jobs as they run it, against one file of a storage.

    Args:
        folder: for its files.
        storage: of one site.
    """

    def __init__(self, folder: Path, storage: XrootdStorage) -> None:
        self._folder = folder
        self._software = set_up_software(CLIENT)
        (site,) = storage.box.sites
        path = storage_folder(storage.box, site) / DATASET_FOLDER.lstrip("/") / "data"
        path.write_bytes(os.urandom(FILE_SIZE))
        path.chmod(0o644)
        doors = {door.name: door.prefix for door in storage.doors(site)}
        self._urls = {name: f"{doors[name]}/data" for name in ("root", "http")}
        self._urls["file"] = str(path)

    def run(
        self, operation: str, seconds: float, door: str, axes: Mapping[str, Any]
    ) -> dict[str, float]:
        """Run one load and return its figures, marked steps included."""
        file = {"name": "data", "url": self._urls[door], "size": FILE_SIZE, "adler32": ""}
        job = {
            "format": 1,
            "execution": {"files": [file], "variant": axes, "seed": 1},
            "settings": {},
            "load": {"step_s": 1.0, "duration_s": seconds},
        }
        script, task, result = (self._folder / name for name in ("load.py", "job.json", "out.json"))
        task.write_text(json.dumps(job))
        script.write_text(f"import treehammer_load as load\nload.run(load.{operation}_files)\n")
        paths = {"TREEHAMMER_JOB": str(task), "TREEHAMMER_RESULT": str(result)}
        subprocess.run(
            self._software.build_command("python", str(script)),
            env={**self._software.env, **paths},
            check=True,
            timeout=seconds + EXTRA_S,
        )
        operations = json.loads(result.read_text())["operations"]
        return _summarize([row for row in operations if row["operation"] == operation])


def _summarize(rows: list[dict[str, Any]]) -> dict[str, float]:
    def total(name: str) -> float:
        return float(sum(row[name] for row in rows))

    seconds = sum({row["step"]: row["step_s"] for row in rows}.values())
    latency = LatencyHistogram.sum(
        LatencyHistogram.decode(row["latency"]) for row in rows if row["latency"]
    )
    return {
        "attempted_hz": total("scheduled") / seconds,
        "achieved_hz": total("done") / seconds,
        "late_share": total("late") / total("scheduled"),
        "lateness_max_s": max(row["lateness_max_s"] for row in rows),
        "latency_p50_s": latency.quantile(0.5),
        "latency_p99_s": latency.quantile(0.99),
        "cpu": max(row["generator_cpu"] for row in rows),
    }
