"""Diagnoses of ``treehammer explain`` where the cause of a low CPU efficiency was planted."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.planted_limits import (
    NoLimitError,
    limit_cpu,
    limit_disk,
    prefer_cpu,
    share_core,
)
from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from benchmarks.harness.worker_runs import TREEHAMMER, render_jobs, run_worker
from treehammer import config
from treehammer.analysis.descriptive.efficiency_diagnosis import (
    DIAGNOSIS_COLUMNS,
    Cause,
    diagnose_efficiency,
)
from treehammer.tables import TableColumn
from treehammer.terminal import print_rows
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)
from treehammer.testbed.core import lifecycle, workspace
from treehammer.testbed.network.site_profiles import NetworkDistance, SiteProfile

DATASET = "reference-small"
#: Twins of the dataset, whose zlib takes about half of the CPU time: little and much decompression.
LZ4_TWIN, LZMA_TWIN = f"{DATASET}-lz4", f"{DATASET}-lzma"
_CODECS = {LZ4_TWIN: "lz4:4", LZMA_TWIN: "lzma:6"}
#: Distances of the two storages: little bandwidth, and long round trips.
SLOW, DISTANT = NetworkDistance(0.2, 40), NetworkDistance(40, 1000)
CPU_LIMIT, NEIGHBORS, DISK_BYTES_PER_S = 0.3, 3, 4_000_000

_ALL = ("-P", "branches=1", "-P", "cache_mb=30")
_UNCACHED = ("-P", "branches=0.02", "-P", "cache_mb=0")


@dataclass(frozen=True)
class PlantedCase:
    """A planted cause.

    Attributes:
        title: in the table.
        cause: expected diagnosis.
        passes: passes of the loop.
        options: of ``treehammer render``.
        site: index of the storage that is read; None for a local file.
        plant: plants the cause around a run.
    """

    title: str
    cause: Cause
    passes: int
    options: tuple[str, ...] = _ALL
    site: int | None = None
    plant: Callable[[], AbstractContextManager[None]] = nullcontext


def list_cases(file: Path) -> list[PlantedCase]:
    """List the cases; ``file`` is the local one."""
    busy = f"{NEIGHBORS} busy processes on its core"
    rate, delay = f"{SLOW.rate_mbit:g} Mbit/s", f"{DISTANT.rtt_ms:g} ms"
    disk = f"evicted file, disk at {DISK_BYTES_PER_S / 1e6:g} MB/s"
    cold = ("-P", "cache=cold")
    lz4, lzma = (("-S", f"dataset={twin}") for twin in (LZ4_TWIN, LZMA_TWIN))
    return [
        PlantedCase("nothing", Cause.DESERIALIZATION, 16, (*_ALL, *lz4)),
        PlantedCase(busy, Cause.CPU_SHORTAGE, 4, plant=lambda: share_core(NEIGHBORS)),
        PlantedCase(
            f"cgroup of {CPU_LIMIT} CPUs", Cause.CPU_LIMIT, 4, plant=lambda: limit_cpu(CPU_LIMIT)
        ),
        PlantedCase(f"storage at {rate}", Cause.SLOW_READS, 2, site=0),
        PlantedCase(f"storage at {delay}, no cache", Cause.LATENCY, 2, _UNCACHED, site=1),
        PlantedCase(f"copy at {rate}", Cause.STAGE_IN, 4, (*_ALL, "-P", "access=staged"), site=0),
        PlantedCase(
            disk,
            Cause.COLD_CACHE,
            1,
            (*_ALL, *cold),
            plant=lambda: limit_disk(file, DISK_BYTES_PER_S),
        ),
        # A cold execution always reads one pass, in less time than ROOT takes to start.
        PlantedCase("evicted file, disk as it is", Cause.START, 1, (*_ALL, *lz4, *cold)),
        PlantedCase("LZMA", Cause.DECOMPRESSION, 4, (*_ALL, *lzma)),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--explain-runs", type=int, default=5, help="explain: jobs of each case (default: 5)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Run every case, print the confusion table and write ``explain.csv``."""
    settings = config.load_settings()
    _make_datasets(settings)
    file = settings.datasets_dir / DATASET / f"{DATASET}.root"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, _run_storages(file, Path(folder)) as sites:
        for number, case in enumerate(list_cases(file)):
            jobs = _render_case(case, Path(folder) / str(number), options.explain_runs, sites)
            try:
                rows += [_explain_job(case, inputs) for inputs in jobs]
            except NoLimitError as error:
                print(f"  {case.title}: not planted: {error}")
    write_rows("explain", rows)
    _print_confusion(rows)
    right = sum(row["found"] == row["planted"] for row in rows)
    return [RatioFigure("diagnoses that name the planted cause / runs", right / len(rows))]


def _make_datasets(settings: config.Settings) -> None:
    commands = [["make", DATASET]]
    for twin, codec in _CODECS.items():
        if not (settings.datasets_dir / twin).exists():
            commands.append(["make", DATASET, "--compression", codec, "--as", twin])
    for command in commands:
        subprocess.run([TREEHAMMER, "datasets", *command], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _run_storages(file: Path, folder: Path) -> Iterator[Path]:
    """Run two XRootD servers with a copy of the dataset; yield their sites file."""
    box = workspace.define_workspace(f"bench{os.getpid()}", 2, config.load_settings())
    part = XrootdStorage(box)
    part.profiles = tuple(
        SiteProfile(site, distance)
        for site, distance in zip(box.sites, (SLOW, DISTANT), strict=True)
    )
    with lifecycle.run_testbed(box, [part], print):
        doors = ""
        for number, site in enumerate(box.sites):
            target = storage_folder(box, site) / DATASET_FOLDER.lstrip("/") / DATASET
            box.make_folder(target)
            shutil.copy(file, target)
            doors += (
                f"[[sites.{number}.doors]]\nname = 'root'\nprotocol = 'root'\n"
                f"prefix = '{part.doors(site)[0].prefix}'\n"
            )
        sites_file = folder / "sites.toml"
        sites_file.write_text(doors)
        yield sites_file


def _render_case(case: PlantedCase, folder: Path, runs: int, sites_file: Path) -> list[Path]:
    folder.mkdir()
    common = ("-P", "root=6.40.00", "-P", "bundle=root", "-S", "mode=solo", "-S", "rounds=1")
    jobs = ("-S", f"repeats={runs}", "-S", f"passes={case.passes}")
    place = ("--sites", "local" if case.site is None else str(case.site))
    options = (*common, *jobs, *case.options, *place)
    return render_jobs("ttree-read", folder, *options, sites_file=sites_file)


def _explain_job(case: PlantedCase, inputs: Path) -> dict[str, Any]:
    """Run one job with its planted cause and diagnose it."""
    with prefer_cpu(), case.plant():
        ran = run_worker(inputs, own_cgroup=False)
    records = [one.values for one in ran.records]
    found = diagnose_efficiency(
        [{name: one.get(name) for name in DIAGNOSIS_COLUMNS} for one in records]
    )
    if found is None:
        raise RuntimeError(f"{case.title}: nothing to explain")
    row = {
        "case": case.title,
        "planted": case.cause.value,
        "found": found.cause.value,
        "efficiency": round(found.breakdown.efficiency, 3),
        "wall_s": round(found.breakdown.wall_s, 2),
        "load1": records[0]["load1_start"],
        "sentence": found.sentence,
    }
    print(f"  {row['case']}: {row['sentence']} (efficiency {row['efficiency']:.2f})", flush=True)
    return row


def _print_confusion(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the diagnoses of each case; columns are the causes found."""
    cases = list(dict.fromkeys((row["case"], row["planted"]) for row in rows))
    causes = [one.value for one in Cause if any(row["found"] == one for row in rows)]
    lines = []
    for case, planted in cases:
        own = [row for row in rows if row["case"] == case]
        counts = Counter(row["found"] for row in own)
        efficiency = statistics.median(row["efficiency"] for row in own)
        lines.append({"planted": case, "expected": planted, "efficiency": efficiency} | counts)
    columns = [
        TableColumn("planted", "planted"),
        TableColumn("expected", "expected"),
        TableColumn("efficiency", "efficiency", "{:.2f}".format),
        *(TableColumn(cause, cause, is_number=True) for cause in causes),
    ]
    print_rows(lines, columns)
