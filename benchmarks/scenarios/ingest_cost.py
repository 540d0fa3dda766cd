"""Ingest of the results service: acknowledged measurements per second and latency tails.

One process serves; clients in another process send prepared, compressed requests over kept
connections. Databases are durable, and acknowledged measurements are counted in them.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks.harness.figures import RatioFigure, print_table, write_results
from benchmarks.harness.program_runs import run_postgres, wait_for_service
from benchmarks.harness.synthetic_measurements import SyntheticCampaigns
from treehammer.config import load_settings
from treehammer.sql.core.access_keys import SUBMIT, MasterKeys
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write.keyring import Keyring
from treehammer.sql.write.maintenance import check_database
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.service.app import create_app
from treehammer.web.service.service_process import configure_uvicorn

#: Measurements per round by default.
ROW_COUNT = 3000
ROUNDS = 6
#: Measurements per request -> concurrent connections.
CONNECTIONS_BY_BATCH = {1: 32, 20: 8}
#: Limits: measurements acknowledged in a second, and seconds of the 99th percentile of a request.
MIN_RATE, MAX_P99_S = 200.0, 1.0
MASTER_KEY = b"m" * 32


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--ingest",
        type=int,
        default=ROW_COUNT,
        help=f"ingest: measurements per round ({ROW_COUNT})",
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Send equal numbers of measurements to each kind of database, in turn."""
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="treehammer-") as name,
        run_postgres(Path(name) / "postgresql") as server,
    ):
        for size, round_ in product(CONNECTIONS_BY_BATCH, range(ROUNDS)):
            server.create_database(f"ingest_{size}_{round_}")
            urls = {
                "SQLite": f"sqlite:///{name}/{size}-{round_}.db",
                "PostgreSQL": server.url(f"ingest_{size}_{round_}"),
            }
            for kind, url in sorted(urls.items(), reverse=bool(round_ % 2)):
                account = _measure_round(url, options.ingest, size)
                rows.append({"store": kind, "size": size, "round": round_, **account})
    write_results("ingest", rows)
    print_table(rows)
    return list(_build_figures(rows))


def _measure_round(url: str, count: int, size: int) -> dict[str, float]:
    engine = open_engine(url, create=True)
    try:
        key = Keyring(engine).create_key(MASTER_KEY, SUBMIT, "benchmark", now_us=1)
    finally:
        engine.dispose()
    requests = list(_build_requests(count, size, key.text))
    with _run_service(url) as port:
        # The first requests load modules and connect; they are not timed.
        warm_up = max(1, len(requests) // 20)
        asyncio.run(_time_requests(port, requests[:warm_up], 2))
        start = time.monotonic()
        connections = CONNECTIONS_BY_BATCH[size]
        latencies = asyncio.run(_time_requests(port, requests[warm_up:], connections))
        wall_s = time.monotonic() - start
    stored, expected = check_database(url)["measurement"], size * len(requests)
    if stored != expected:
        raise RuntimeError(f"{stored} of {expected} measurements are in the database")
    return {
        "rows_per_s": size * len(latencies) / wall_s,
        "p50_s": float(np.percentile(latencies, 50)),
        "p99_s": float(np.percentile(latencies, 99)),
        "load": os.getloadavg()[0],
    }


def _build_requests(count: int, size: int, token: str) -> Iterator[bytes]:
    """Yield requests of ``size`` measurements each, of three days at forty sites."""
    measurements = iter(SyntheticCampaigns(3, count))
    while chunk := [*islice(measurements, size)]:
        documents = [{"values": dict(m.values), "extras": dict(m.extras)} for m in chunk]
        body = gzip.compress(json.dumps({"measurements": documents}).encode(), 6)
        head = (
            "POST /api/v1/measurements HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        yield head.encode() + body


async def _time_requests(port: int, requests: Sequence[bytes], connections: int) -> list[float]:
    """Return the seconds from the first byte sent to the last received, per request."""
    unsent = iter(requests)
    latencies: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in unsent:
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
def _run_service(url: str) -> Iterator[int]:
    """Run the service in its own process; yield its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        command = [sys.executable, "-m", __name__, url, str(listening.fileno())]
        process = subprocess.Popen(command, pass_fds=[listening.fileno()])
        try:
            wait_for_service(process, listening.getsockname()[1])
            yield listening.getsockname()[1]
        finally:
            process.terminate()
            process.wait()


def _serve_process(url: str, listening: int) -> None:
    logging.getLogger("treehammer").setLevel(logging.WARNING)
    database = LiveDatabase(url)
    access_control = AccessControl(database.load_access, MasterKeys(MASTER_KEY))
    app = create_app(database, access_control)
    settings = load_settings({"serve_behind_proxy": True}, environ={})
    server = uvicorn.Server(configure_uvicorn(app, settings))
    server.run(sockets=[socket.socket(fileno=listening)])


def _build_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    for size, store in product(CONNECTIONS_BY_BATCH, ("SQLite", "PostgreSQL")):
        selected = [row for row in rows if (row["store"], row["size"]) == (store, size)]
        rate, p99_s = (
            float(np.median([row[name] for row in selected])) for name in ("rows_per_s", "p99_s")
        )
        title = f"{size} a request, {store}"
        yield RatioFigure(f"measurements/s, {title}", rate)
        yield RatioFigure(
            f"{MIN_RATE:g}/s / measurements/s, {title}", MIN_RATE / rate, upper_bound=1.0
        )
        yield RatioFigure(f"p99 s, {title}", p99_s, upper_bound=MAX_P99_S)


if __name__ == "__main__":
    _serve_process(sys.argv[1], int(sys.argv[2]))
