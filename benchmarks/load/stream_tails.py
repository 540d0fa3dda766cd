"""Tails of many writers and readers over several servers, one of which is slowed (study S3).

The servers are those of a testbed behind its redirector. Servers and generator share this machine.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from benchmarks.load.load_runs import LoadGenerator, run_storage
from treehammer.collectors.record.latency_histogram import LatencyHistogram
from treehammer.testbed.components.xrootd_storage import XrootdStorage
from treehammer.testbed.core import fault_injection

SITES, SLOW_SITE = 4, "SITE_B"
#: The slow server is suspended for 0.8 of every second.
STOPPED_S, RUNNING_S = 0.8, 0.2
DIRECTIONS = ("write", "read")
#: Size of a file, longest time of one, and of the load.
FILE_MB, OPERATION_S, LIMIT_S = 10.0, 300.0, 900.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--stream-clients", type=int, default=64, help="streams: clients at a time (default: 64)"
    )
    parser.add_argument(
        "--stream-files", type=int, default=4, help="streams: files of each client (default: 4)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure the tails without and with a slow server, and write ``streams.csv``."""
    rows: list[dict[str, Any]] = []
    figures: list[RatioFigure] = []
    with tempfile.TemporaryDirectory() as folder, run_storage(SITES) as storage:
        bench = _StreamBench(Path(folder), storage)
        for direction in DIRECTIONS:
            before, slowed = (
                bench.run(direction, options.stream_clients, options.stream_files, is_slowed)
                for is_slowed in (False, True)
            )
            rows += [*before, *slowed]
            figures += _compare_servers(direction, before, slowed)
    write_rows("streams", rows)
    _print_table(rows)
    return figures


class _StreamBench:
    """Streams through the redirector of a testbed."""

    def __init__(self, folder: Path, storage: XrootdStorage) -> None:
        self._storage, self._generator = storage, LoadGenerator(folder)
        doors = {door.name: door for door in storage.doors(storage.box.sites[0])}
        self._area = doors["federation"].writable_url
        self._slow_port = str(storage.storage_address(SLOW_SITE)[1])

    def run(self, direction: str, clients: int, files: int, slowed: bool) -> list[dict[str, Any]]:
        """Move files of all clients; return the tails of all servers, then those of each."""
        axes = {"clients": clients, "files": files, "size_mb": FILE_MB, "direction": direction}
        load = {"duration_s": LIMIT_S, "writable": self._area, "folder": "treehammer-bench"}
        slow = fault_injection.slow_daemon(
            self._storage.box, f"xrootd-{SLOW_SITE}", stopped_s=STOPPED_S, running_s=RUNNING_S
        )
        with slow if slowed else nullcontext():
            report = self._generator.run(
                "load.stream_files, prepare=load.write_streams",
                load,
                axes,
                settings={"timeout_s": OPERATION_S},
            )
        # Preparing and removing files are not among the operations.
        operations = report["operations"]
        seconds = sum({row["step"]: row["step_s"] for row in operations}.values())
        span = {"load": f"{direction}, one slow" if slowed else direction}
        servers = sorted({row["server"] for row in operations})
        groups = {"all": operations} | {
            name: [row for row in operations if row["server"] == name] for name in servers
        }
        return [
            {
                **span,
                "server": self._label(name) + " (slow)" * (slowed and self._is_slow(name)),
                **_summarize(group),
                "mb_per_s": sum(row["bytes"] for row in group) / seconds / 1e6,
            }
            for name, group in groups.items()
        ]

    def _label(self, server: str) -> str:
        """Name the site of a server; others answered only what failed."""
        port = server.rpartition(":")[2]
        ports = {
            str(self._storage.storage_address(site)[1]): site for site in self._storage.box.sites
        }
        return ports.get(port, server or "none")

    def _is_slow(self, server: str) -> bool:
        return server.endswith(f":{self._slow_port}")


def _summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    latency = LatencyHistogram.sum(
        LatencyHistogram.decode(row["latency"]) for row in rows if row["latency"]
    )
    figures = {
        "files": sum(row["done"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
        "failures": " ".join(
            sorted({name for row in rows for name in json.loads(row["failures"])})
        ),
    }
    tails = ("mean_s", "deviation_s", "p50_s", "p95_s", "p99_s", "max_s")
    if not latency.count:
        return {**figures, **dict.fromkeys(tails, math.nan)}
    quantiles = (latency.quantile(fraction) for fraction in (0.5, 0.95, 0.99, 1.0))
    values = (latency.mean, latency.standard_deviation, *quantiles)
    return {**figures, **dict(zip(tails, values, strict=True))}


def _compare_servers(
    direction: str, before: Sequence[dict[str, Any]], slowed: Sequence[dict[str, Any]]
) -> Iterator[RatioFigure]:
    """Divide each server's median by its own without a slow server: their distances differ."""
    own, with_slow = (
        {
            row["server"].split()[0]: row["p50_s"]
            for row in rows
            if row["server"].startswith("SITE_")
        }
        for rows in (before, slowed)
    )
    ratios = {name: with_slow[name] / own[name] for name in with_slow if name in own}
    title = f"{direction}: median time of a file, with / without the slow server"
    yield RatioFigure(f"{title}, itself", ratios.pop(SLOW_SITE))
    yield RatioFigure(f"{title}, largest of the others", max(ratios.values()))


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    names = list(rows[0])
    print("".join(f"{name:>18}" for name in names))
    for row in rows:
        cells = (one if isinstance(one, str) else f"{one:.4g}" for one in row.values())
        print("".join(f"{cell:>18}" for cell in cells))
