"""Punctuality and highest rates of one load generator, against the fastest other clients.

Server and generator share this machine, so the figures need an idle one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from benchmarks.load import load_peers
from benchmarks.load.load_peers import CLIENTS, PeerError
from benchmarks.load.load_runs import LoadGenerator, run_storage
from treehammer.collectors.record.latency_histogram import LatencyHistogram
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)

#: Share of operations that may be sent more than 10 ms late.
MAX_LATE = 0.01
#: Study S1: opens per second, and readers of 2.5 MB every 10 s.
OPENS_HZ, READERS = 200, 800
FILE_SIZE = 50_000_000
SMALL_READ_KB = 4
#: Rates that are tried for the highest one, and seconds for each.
RATES_HZ = (250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12_000, 16_000)
RATE_SECONDS = 4
#: Files of xrdcp, copied eight at a time; reads of xrdreplay.
COPIED_FILES, REPLAYED_READS = 500, 20_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--load-seconds", type=int, default=60, help="load: length of each load (default: 60)"
    )
    parser.add_argument(
        "--load-rates", type=int, default=len(RATES_HZ), help="load: rates tried (default: all)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure punctuality, then the highest rates, and write ``load.csv``."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, run_storage() as storage:
        bench = _LoadBench(Path(folder), storage)
        readers = {"clients": READERS, "period_s": 10, "block_kb": 2500}
        loads: dict[str, tuple[str, dict[str, Any]]] = {
            f"{OPENS_HZ} opens/s": ("open", {"clients": 100, "rate_hz": OPENS_HZ / 100}),
            f"{READERS} readers": ("read", readers),
        }
        figures = []
        for title, (kind, axes) in loads.items():
            found = bench.run(kind, options.load_seconds, **axes)
            rows.append({"load": title, **found})
            label = f"{title}: share sent more than 10 ms late"
            figures.append(RatioFigure(label, found["late_share"], upper_bound=MAX_LATE))
        rates = RATES_HZ[: options.load_rates]
        figures += list(bench.compare_rates(rates, rows))
    write_rows("load", [{name: row.get(name, "") for name in _COLUMNS} for row in rows])
    _print_table(rows)
    return figures


_COLUMNS = (
    "load",
    "attempted_hz",
    "achieved_hz",
    "late_share",
    "lateness_max_s",
    "latency_p50_s",
    "latency_p99_s",
    "cpu",
)


def _print_table(rows: list[dict[str, Any]]) -> None:
    print("".join(f"{name:>16}" for name in _COLUMNS))
    for row in rows:
        cells = [f"{row[name]:.4g}" if name in row else "" for name in _COLUMNS[1:]]
        print("".join(f"{text:>16}" for text in (row["load"], *cells)))


class _LoadBench:
    """Runs generators and their peers against one server."""

    def __init__(self, folder: Path, storage: XrootdStorage) -> None:
        self.folder, self.storage = folder, storage
        self.data = storage_folder(storage.box, storage.box.sites[0]) / DATASET_FOLDER.lstrip("/")
        self._store("data", FILE_SIZE)
        doors = {one.name: one.prefix for one in storage.doors(storage.box.sites[0])}
        self.urls = {name: f"{doors[name]}/data" for name in ("root", "http")}
        self.urls["file"] = str(self.data / "data")
        self.root = doors["root"]
        self.generator = LoadGenerator(folder)

    def _store(self, name: str, size: int) -> None:
        (self.data / name).write_bytes(os.urandom(size))
        (self.data / name).chmod(0o644)

    def run(self, kind: str, seconds: float, door: str = "root", **axes: Any) -> dict[str, float]:
        """Run one load and return its figures, marked steps included."""
        file = {"name": "data", "url": self.urls[door], "size": FILE_SIZE, "adler32": ""}
        report = self.generator.run(f"load.{kind}_files", {"duration_s": seconds}, axes, file)
        return _summarize([row for row in report["operations"] if row["operation"] == kind])

    def compare_rates(
        self, rates: tuple[int, ...], rows: list[dict[str, Any]]
    ) -> Iterator[RatioFigure]:
        """Compare our highest rates with those of other clients, as far as these can be measured."""
        measured: dict[tuple[str, str], float] = {}
        for title, kind, door, measure_peer in self._list_peers():
            try:
                peer = measure_peer()
            except PeerError as error:
                print(f"not compared: {title}: {error}")
                continue
            rows.append({"load": title, "achieved_hz": peer})
            if (kind, door) not in measured:
                measured[kind, door] = self.find_highest_rate(kind, door, rates, rows)
            yield RatioFigure(f"highest rate / {title}", measured[kind, door] / peer)

    def _list_peers(self) -> list[tuple[str, str, str, Callable[[], float]]]:
        """List other clients: title, our load and door, function that measures them."""
        size, folder = SMALL_READ_KB * 1000, self.folder
        span = FILE_SIZE - size
        find, program = load_peers.find_program, self.storage.program_path
        http, path = self.urls["http"], self.data / "data"
        return [
            ("files of xrdcp", "open", "root", self._copy_files),
            (
                "4 kB reads of xrdreplay",
                *("read", "root"),
                lambda: load_peers.replay_reads(
                    program("xrdreplay"), self.urls["root"], REPLAYED_READS, size, span, folder
                ),
            ),
            ("HEAD requests of oha", *("open", "http"), self._request_heads),
            (
                "4 kB ranges of wrk",
                *("read", "http"),
                lambda: load_peers.request_ranges(
                    find("wrk"), http, size, span, RATE_SECONDS, folder
                ),
            ),
            (
                "4 kB reads of fio, path",
                *("read", "file"),
                lambda: load_peers.read_path(find("fio"), path, size, RATE_SECONDS),
            ),
        ]

    def _request_heads(self) -> float:
        oha = load_peers.find_program("oha")
        return load_peers.request_heads(oha, self.urls["http"], RATE_SECONDS)

    def _copy_files(self) -> float:
        names = [f"small{number}" for number in range(COPIED_FILES)]
        for name in names:
            self._store(name, 1)
        urls = [f"{self.root}/{name}" for name in names]
        return load_peers.copy_files(self.storage.program_path("xrdcp"), urls, self.folder)

    def find_highest_rate(
        self, kind: str, door: str, rates: tuple[int, ...], rows: list[dict[str, Any]]
    ) -> float:
        """Raise the rate until operations are late or missing; return the last good one."""
        best = 0.0
        for rate in rates:
            axes: dict[str, Any] = {"clients": CLIENTS, "rate_hz": rate / CLIENTS}
            if kind == "read":
                axes = {"clients": CLIENTS, "period_s": CLIENTS / rate, "block_kb": SMALL_READ_KB}
            found = self.run(kind, RATE_SECONDS, door, **axes)
            rows.append({"load": f"{kind} at {rate}/s, {door}", **found})
            if found["late_share"] >= MAX_LATE or found["achieved_hz"] < 0.99 * rate:
                break
            best = found["achieved_hz"]
        return best or min(rates)


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
