"""Cost of the store for the results service: requests per second and latency tails.

One process serves; clients in another process send prepared, compressed requests over kept
connections. The peer is the same service without its store: it unpacks, parses, checks the token,
validates all fields, and responds that all records are new.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvicorn

from benchmarks.harness.filled_databases import DURABLE_SETTINGS, run_postgres
from benchmarks.harness.ratio_figures import (
    RatioFigure,
    divide_pairs,
    median_ratio,
    plot_points,
    write_rows,
)
from benchmarks.harness.service_runs import wait_for_service
from benchmarks.harness.synthetic_measurements import SyntheticCampaigns
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.auth.access_keys import SUBMIT, MasterKeys
from treehammer.sql.auth.keyring import Keyring
from treehammer.sql.setup.database_setup import open_engine
from treehammer.sql.write.database_check import check_database
from treehammer.sql.write.ownership import Delivery
from treehammer.sql.write.recording import AddResult
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.client_limits import ClientLimits
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.service.app import create_app
from treehammer.web.service.connection_guard import ConnectionGuard
from treehammer.web.service.service_process import configure_uvicorn

#: Measurements per round by default.
ROW_COUNT = 3000
ROUNDS = 6
#: One client sends everything.
NO_LIMITS = ClientLimits(requests_per_s=1_000_000)
#: Measurements per request -> concurrent connections.
CONNECTIONS_BY_BATCH = {1: 32, 20: 8}
STORE_OFF = "store off"
MASTER_KEY = b"m" * 32


class _NullStore:
    """A store that takes no time."""

    def add(
        self, measurements: Iterable[Measurement], deliveries: Iterable[Delivery] = ()
    ) -> AddResult:
        """Report all measurements as new."""
        return AddResult(sum(1 for _ in measurements), 0)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--ingest",
        type=int,
        default=ROW_COUNT,
        help=f"ingest: measurements per round ({ROW_COUNT})",
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Send equal numbers of measurements to each kind of store and to none, in turn."""
    count = int(options.ingest)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="treehammer-") as name,
        run_postgres(Path(name) / "postgresql", DURABLE_SETTINGS) as server,
    ):
        for size, connections in CONNECTIONS_BY_BATCH.items():
            for round_ in range(ROUNDS):
                stores = {
                    STORE_OFF: f"sqlite:///{name}/off.db",
                    "SQLite": f"sqlite:///{name}/{size}-{round_}.db",
                    "PostgreSQL": server.url(f"ingest_{size}_{round_}"),
                }
                server.create_database(f"ingest_{size}_{round_}")
                order = list(stores)
                random.Random(round_).shuffle(order)
                for kind in order:
                    spent = _measure_round(
                        stores[kind], kind == STORE_OFF, count, size, connections
                    )
                    rows.append({"store": kind, "size": size, "round": round_, **spent})
    write_rows("ingest", rows)
    return _build_figures(rows)


def _measure_round(
    url: str, off: bool, count: int, size: int, connections: int
) -> dict[str, float]:
    engine = open_engine(url, create=True)
    try:
        key = Keyring(engine).create_key(MASTER_KEY, SUBMIT, "benchmark", now_us=1)
        requests = list(_build_requests(count, size, key.text))
        with _run_service(url, off) as (port, process):
            # Some first, so that loading and connecting are not timed.
            before = max(1, len(requests) // 20)
            asyncio.run(_time_requests(port, requests[:before], 2))
            start, cpu_before = time.monotonic(), _cpu_seconds(process)
            latencies = asyncio.run(_time_requests(port, requests[before:], connections))
            wall, cpu = time.monotonic() - start, _cpu_seconds(process) - cpu_before
    finally:
        engine.dispose()
    if not off:
        stored, expected = check_database(url)["measurement"], size * len(requests)
        if stored != expected:
            raise RuntimeError(f"{stored} of {expected} measurements are in the database")
    return {
        "rows_per_s": size * len(latencies) / wall,
        "cpu_s_per_row": cpu / (size * len(latencies)),
        "p50_s": float(np.percentile(latencies, 50)),
        "p99_s": float(np.percentile(latencies, 99)),
        "load": os.getloadavg()[0],
    }


def _build_requests(count: int, size: int, token: str) -> Iterator[bytes]:
    """Yield requests of ``size`` measurements each, of three days at forty sites."""
    waiting = iter(SyntheticCampaigns(3, count))
    while documents := [_to_document(m) for m in islice(waiting, size)]:
        body = gzip.compress(json.dumps({"measurements": documents}).encode(), 6)
        head = (
            "POST /api/v1/measurements HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        yield head.encode() + body


def _to_document(measurement: Measurement) -> dict[str, Any]:
    return {"values": dict(measurement.values), "extras": dict(measurement.extras)}


async def _time_requests(port: int, requests: Sequence[bytes], connections: int) -> list[float]:
    """Return the seconds from the first byte sent to the last received, per request."""
    waiting = iter(requests)
    latencies: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in waiting:
            start = time.monotonic()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode(errors="replace"))
            fields = head.decode().lower().split("\r\n")
            length = next(f for f in fields if f.startswith("content-length:")).partition(":")[2]
            await reader.readexactly(int(length))
            latencies.append(time.monotonic() - start)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client() for _ in range(connections)))
    return latencies


@contextmanager
def _run_service(url: str, off: bool) -> Iterator[tuple[int, psutil.Process]]:
    """Run the service in its own process; yield its port and process."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        command = [sys.executable, "-m", "benchmarks.service.ingest_cost", url]
        command += [str(listening.fileno()), STORE_OFF if off else "on"]
        process = subprocess.Popen(command, pass_fds=[listening.fileno()])
        try:
            wait_for_service(process, listening.getsockname()[1])
            yield listening.getsockname()[1], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def _cpu_seconds(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def _serve_process(url: str, listening: int, kind: str) -> None:
    logging.getLogger("treehammer").setLevel(logging.WARNING)
    database = LiveDatabase(url)
    access_control = AccessControl(database.load_access, MasterKeys(MASTER_KEY))
    store = _NullStore() if kind == STORE_OFF else database
    app = create_app(
        store,
        access_control,
        mark_bad_replicas=None if kind == STORE_OFF else database.mark_bad_replicas,
        client_limits=NO_LIMITS,
    )
    config = configure_uvicorn(app, ConnectionGuard(NO_LIMITS, lambda _: True), behind_proxy=True)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listening)])


def _build_figures(rows: list[dict[str, Any]]) -> list[RatioFigure]:
    def column(name: str, store: str, size: int) -> list[float]:
        mine = [row for row in rows if (row["store"], row["size"]) == (store, size)]
        return [row[name] for row in sorted(mine, key=lambda row: row["round"])]

    figures = []
    points: dict[str, list[float]] = {}
    for size in CONNECTIONS_BY_BATCH:
        batch = f"{size} a request"
        for store in ("SQLite", "PostgreSQL"):
            rates, cpus = (
                [column(name, kind, size) for kind in (store, STORE_OFF)]
                for name in ("rows_per_s", "cpu_s_per_row")
            )
            figures += [
                median_ratio(f"measurements/s, {batch}, {store} / {STORE_OFF}", *rates),
                median_ratio(f"service CPU, {batch}, {STORE_OFF} / {store}", *cpus[::-1]),
            ]
            points[f"{store}, {batch}"] = divide_pairs(*rates)
        for store in ("SQLite", "PostgreSQL", STORE_OFF):
            figures += [
                RatioFigure(
                    f"{title}, {batch}, {store}", float(np.median(column(name, store, size)))
                )
                for title, name in (("measurements/s", "rows_per_s"), ("p99 s", "p99_s"))
            ]
    plot_points("ingest", "Ingest with the store, against the store switched off", "ratio", points)
    return figures


if __name__ == "__main__":
    _serve_process(sys.argv[1], int(sys.argv[2]), sys.argv[3])
