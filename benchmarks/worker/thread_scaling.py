"""Scaling of RDataFrame with threads: idle time against the bound of a list of files, and simulated.

The payload of the shipped test ``rdf-read`` reads even and uneven files with one and two threads.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.planted_limits import prefer_cpu
from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from benchmarks.harness.root_scripts import set_up_software
from benchmarks.worker.file_batches import THREADS, simulate_efficiencies, write_files
from treehammer.collectors.kit.treehammer_kit.columns import scheduling_bound
from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

RELEASE = "6.40.00"
TTREE, RNTUPLE = "ttree", "rntuple"
TOGETHER, IN_TURN = "together", "in turn"
#: Name -> clusters of each file.
FILE_LISTS: Mapping[str, Sequence[int]] = {
    "even": (3,) * 8,
    "uneven": (8, 1, 1, 1, 8, 1, 1, 1),
}
EVENTS_PER_CLUSTER = 20_000
PAYLOAD = Path(hctests_file).parent / "rdf-read" / "read.py"
#: Keeps all events.
SETTINGS = {"filter": "file", "minimum": -1, "bins": 64, "low": 0.0, "high": 5.0}
SEED = 1


@dataclass(frozen=True)
class ThreadCase:
    """One way of reading the files.

    Attributes:
        files: key of :data:`FILE_LISTS`.
        format: of the files.
        order: all files in one event loop, or one loop for each.
        threads: of implicit multi-threading.
    """

    files: str
    format: str
    order: str
    threads: int

    @property
    def clusters(self) -> list[list[int]]:
        """Entries of each file's clusters, in units of a cluster."""
        return [[1] * count for count in FILE_LISTS[self.files]]

    @property
    def bound(self) -> float:
        """Least share of the threads' time that is idle, for any scheduler."""
        return 1 - scheduling_bound.bound_efficiency(self.clusters, self.threads)

    @property
    def expected(self) -> float:
        """Idle share with ROOT's scheduler, if every cluster takes equally long."""
        strategy = scheduling_bound.list_makespan
        if self.format == RNTUPLE:
            strategy = scheduling_bound.batch_makespan
        loops = [self.clusters] if self.order == TOGETHER else [[one] for one in self.clusters]
        makespan = sum(strategy(loop, self.threads) for loop in loops)
        return 1 - sum(map(sum, self.clusters)) / (self.threads * makespan)


def list_cases() -> Iterator[ThreadCase]:
    """List the cases; with one thread the order of files does not matter."""
    for files in FILE_LISTS:
        for file_format in (TTREE, RNTUPLE):
            yield ThreadCase(files, file_format, TOGETHER, 1)
            yield ThreadCase(files, file_format, TOGETHER, 2)
            yield ThreadCase(files, file_format, IN_TURN, 2)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--thread-runs", type=int, default=5, help="threads: runs of each case (default: 5)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Read the files in all ways by turns, print the tables and write ``threads.csv``."""
    setup = set_up_software(RELEASE)
    order, rows = random.Random(SEED), []
    with tempfile.TemporaryDirectory() as folder:
        for name, clusters in FILE_LISTS.items():
            Path(folder, name).mkdir()
            for file_format in (TTREE, RNTUPLE):
                write_files(RELEASE, file_format, Path(folder, name), clusters, EVENTS_PER_CLUSTER)
        for number in range(options.thread_runs):
            cases = list(list_cases())
            order.shuffle(cases)
            rows += [{"run": number, **_run_case(case, setup, Path(folder))} for case in cases]
    write_rows("threads", rows)
    _print_measured(rows)
    _print_simulated()
    return list(_compare_with_model(rows))


def _run_case(case: ThreadCase, setup: providers.SoftwareSetup, folder: Path) -> dict[str, Any]:
    """Run the payload of the test once; return its figures."""
    paths = sorted(Path(folder, case.files).glob(f"{case.format}-*.root"))
    variant = {
        "branches": "values",
        "cache_mb": 30,
        "events": 1.0,
        "cache": "warm",
        "format": case.format,
        "threads": case.threads,
        "file_order": case.order,
    }
    execution = {
        "kind": "timed",
        "variant": variant,
        "files": [{"url": str(path), "adler32": ""} for path in paths],
        "tree": "events",
        "passes": 3,
        "seed": SEED,
    }
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(json.dumps({"format": 1, "execution": execution, "settings": SETTINGS}))
    places = {"TREEHAMMER_JOB": str(job), "TREEHAMMER_RESULT": str(result)}
    with prefer_cpu():
        subprocess.run(
            setup.build_command("python", str(PAYLOAD)),
            env={**setup.env, **places},
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    document = json.loads(result.read_text())
    if document["failure"]:
        raise RuntimeError(document["failure"]["message"])
    values, extras = document["values"], document["extras"]
    available = case.threads * values["loop_wall_s"]
    return {
        **asdict(case),
        "events_per_s": round(values["events_read"] / values["loop_wall_s"]),
        "loop_wall_s": round(values["loop_wall_s"], 4),
        "loop_cpu_s": round(values["loop_cpu_s"], 4),
        "run_queue_share": round(values["loop_run_queue_s"] / available, 4),
        "idle_share": round(extras["idle_thread_s"] / available, 4),
        "load1": round(os.getloadavg()[0], 1),
    }


def _median(rows: Sequence[Mapping[str, Any]], case: ThreadCase, name: str) -> float:
    mine = [row[name] for row in rows if {**row, **asdict(case)} == row]
    return float(statistics.median(mine))


def _print_measured(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print medians of each case: rates, and idle shares beside their bound and the model's."""
    print("files   format   order     threads  events/s  speed-up  waits  idle  bound  model")
    for case in list_cases():
        alone = ThreadCase(case.files, case.format, TOGETHER, 1)
        rate = _median(rows, case, "events_per_s")
        shares = [_median(rows, case, name) for name in ("run_queue_share", "idle_share")]
        numbers = "  ".join(f"{100 * x:3.0f} %" for x in (*shares, case.bound, case.expected))
        print(
            f"{case.files:7} {case.format:8} {case.order:9} {case.threads:7}  {rate:8.0f}  "
            f"{rate / _median(rows, alone, 'events_per_s'):8.2f}  {numbers}"
        )


def _print_simulated() -> None:
    """Print the used share of more threads for the same lists of files."""
    for name, clusters in FILE_LISTS.items():
        print(f"\n{name}, simulated\nthreads  bound  next free  batches")
        for threads in (2, *THREADS):
            shares = simulate_efficiencies([[1] * count for count in clusters], threads)
            print(f"{threads:7}  {shares[0]:5.2f}  {shares[1]:9.2f}  {shares[2]:7.2f}")


def _compare_with_model(rows: Sequence[Mapping[str, Any]]) -> Iterator[RatioFigure]:
    for case in list_cases():
        if case.threads > 1:
            busy = 1 - _median(rows, case, "idle_share")
            title = f"busy share of {case.threads} threads, measured / model"
            yield RatioFigure(
                f"{title}: {case.files} {case.format} {case.order}",
                busy / (1 - case.expected),
                pairs=sum({**row, **asdict(case)} == row for row in rows),
            )
