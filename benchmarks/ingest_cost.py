"""What the store costs the results service: requests a second and their tail, with it and without.

One process serves; clients of another send requests that were made before, packed as workers pack
them, over connections that they keep.  The peer is the same service with its store switched off: it
unpacks, parses, checks the token, validates every field, and says that all is new.
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
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks.databases import DURABLE, postgresql
from benchmarks.report import Figure, draw_points, median_ratio, write_rows
from benchmarks.world import World
from treehammer.collectors.record import Measurement
from treehammer.sql.keyring import Keyring
from treehammer.sql.recording import Added
from treehammer.sql.store import check_database, open_engine
from treehammer.sql.tokens import SUBMIT
from treehammer.web.app import create_app
from treehammer.web.connections import Connection
from treehammer.web.doorkeeper import Doorkeeper
from treehammer.web.live_database import LiveDatabase

#: Measurements of one round, unless the command line says otherwise.
ROWS = 3000
ROUNDS = 6
#: Measurements of one request -> connections that send such requests at once.
REQUESTS = {1: 32, 20: 8}
OFF = "store off"
MASTER = b"m" * 32


class _Off:
    """Stands for a store that takes no time."""

    def add(self, measurements: Iterable[Measurement]) -> Added:
        """Say that all is new."""
        return Added(sum(1 for _ in measurements), 0)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument(
        "--ingest", type=int, default=ROWS, help=f"ingest: measurements of a round ({ROWS})"
    )


def measure(options: argparse.Namespace) -> list[Figure]:
    """Send as many measurements to each kind of store in turn, and to none."""
    count = int(options.ingest)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="treehammer-") as name,
        postgresql(Path(name) / "postgresql", DURABLE) as server,
    ):
        for size, connections in REQUESTS.items():
            for round_ in range(ROUNDS):
                stores = {
                    OFF: f"sqlite:///{name}/off.db",
                    "SQLite": f"sqlite:///{name}/{size}-{round_}.db",
                    "PostgreSQL": server.url(f"ingest_{size}_{round_}"),
                }
                server.create_database(f"ingest_{size}_{round_}")
                order = list(stores)
                random.Random(round_).shuffle(order)
                for kind in order:
                    spent = _round(stores[kind], kind == OFF, count, size, connections)
                    rows.append({"store": kind, "size": size, "round": round_, **spent})
    write_rows("ingest", rows)
    return _figures(rows)


def _round(url: str, off: bool, count: int, size: int, connections: int) -> dict[str, float]:
    engine = open_engine(url, create=True)
    try:
        key = Keyring(engine).create(MASTER, SUBMIT, "benchmark", now_us=1)
        requests = list(_requests(count, size, key.text))
        with _service(url, off) as port:
            # A few before, so that nothing is loaded or opened while time counts.
            before = max(1, len(requests) // 20)
            asyncio.run(_send(port, requests[:before], 2))
            start = time.monotonic()
            latencies = asyncio.run(_send(port, requests[before:], connections))
            wall = time.monotonic() - start
    finally:
        engine.dispose()
    if not off:
        stored, expected = check_database(url)["measurement"], size * len(requests)
        if stored != expected:
            raise RuntimeError(f"{stored} of {expected} measurements are in the database")
    return {
        "rows_per_s": size * len(latencies) / wall,
        "p50_s": float(np.percentile(latencies, 50)),
        "p99_s": float(np.percentile(latencies, 99)),
        "load": os.getloadavg()[0],
    }


def _requests(count: int, size: int, token: str) -> Iterator[bytes]:
    """Requests of ``size`` measurements each, of three days at forty sites."""
    waiting = iter(World(3, count))
    while documents := [_document(m) for m in islice(waiting, size)]:
        body = gzip.compress(json.dumps({"measurements": documents}).encode(), 6)
        head = (
            "POST /api/v1/measurements HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        yield head.encode() + body


def _document(measurement: Measurement) -> dict[str, Any]:
    return {"values": dict(measurement.values), "extras": dict(measurement.extras)}


async def _send(port: int, requests: Sequence[bytes], connections: int) -> list[float]:
    """Seconds from the first byte sent to the last received, of every request."""
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
def _service(url: str, off: bool) -> Iterator[int]:
    """The service in a process of its own, on the port that it is given."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        command = [sys.executable, "-m", "benchmarks.ingest_cost", url, str(listening.fileno())]
        process = subprocess.Popen([*command, OFF if off else "on"], pass_fds=[listening.fileno()])
        try:
            _wait(listening.getsockname()[1])
            yield listening.getsockname()[1]
        finally:
            process.terminate()
            process.wait()


def _wait(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/health", timeout=30).close()
            return
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _serve(url: str, listening: int, kind: str) -> None:
    logging.getLogger("treehammer").setLevel(logging.WARNING)
    database = LiveDatabase(url)
    doorkeeper = Doorkeeper(database.access, MASTER)
    store = _Off() if kind == OFF else database
    app = create_app(store, doorkeeper, mark=None if kind == OFF else database.mark_bad_replicas)
    config = uvicorn.Config(
        app, http=Connection, log_config=None, access_log=False, ws="none", lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listening)])


def _figures(rows: list[dict[str, Any]]) -> list[Figure]:
    def column(name: str, store: str, size: int) -> list[float]:
        mine = [row for row in rows if (row["store"], row["size"]) == (store, size)]
        return [row[name] for row in sorted(mine, key=lambda row: row["round"])]

    figures = []
    points: dict[str, list[float]] = {}
    for size in REQUESTS:
        for store in ("SQLite", "PostgreSQL"):
            what = f"measurements/s, {size} a request, {store} / {OFF}"
            figures.append(
                median_ratio(
                    what, column("rows_per_s", store, size), column("rows_per_s", OFF, size)
                )
            )
            points[f"{store}, {size} a request"] = [
                one / off
                for one, off in zip(
                    column("rows_per_s", store, size), column("rows_per_s", OFF, size), strict=True
                )
            ]
        for store in ("SQLite", "PostgreSQL", OFF):
            rate = column("rows_per_s", store, size)
            p99 = column("p99_s", store, size)
            figures.append(
                Figure(f"measurements/s, {size} a request, {store}", float(np.median(rate)))
            )
            figures.append(Figure(f"p99 s, {size} a request, {store}", float(np.median(p99))))
    draw_points("ingest", "Ingest with the store, against the store switched off", "ratio", points)
    return figures


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
