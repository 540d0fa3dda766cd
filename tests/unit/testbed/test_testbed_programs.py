"""Programs of a testbed: the delaying proxy, and the FTS substitute with the interface of Rucio's transfer tool."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_servers import serve_http

from treehammer.collectors.worker.delay_proxy import CHUNK_BYTES, MIN_WINDOW_BYTES, DelayProxy, Link
from treehammer.testbed.programs import fts_service
from treehammer.testbed.programs.fts_service import TransferQueue, make_handler

#: No limit.
FAST = 0.0
HERE, BEHIND = "127.0.0.1", "127.0.0.2"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def with_proxy(
    delay: float, rate: float, serve: Talk, visit: Callable[[int], Awaitable[None]]
) -> None:
    """Visit a server behind a proxy."""
    server = await asyncio.start_server(serve, BEHIND, 0)
    port = server.sockets[0].getsockname()[1]
    proxy = await DelayProxy(2e3 * delay, rate * 8 / 1e6).serve(HERE, BEHIND, port)
    async with server, proxy:
        await visit(port)
        await wait_for_end()


async def wait_for_end() -> None:
    """Wait until all connections are closed."""
    other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
    _, busy = await asyncio.wait(other_tasks, timeout=60) if other_tasks else (set(), set())
    lasting = {task for task in busy if "serve_forever" in repr(task)}
    assert busy == lasting


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_proxy_connections_share_the_rate() -> None:
    cable = Link(delay=0.5, rate=100.0)
    assert cable.schedule_send(100, now=0.0) == 1.5
    assert cable.schedule_send(100, now=0.0) == 2.5  # of another connection
    assert cable.schedule_send(100, now=9.0) == 10.5  # idle in between


def test_proxy_connection_may_use_full_rate() -> None:
    assert Link(delay=0.01, rate=125e6).window_chunks * CHUNK_BYTES > 2 * 0.01 * 125e6
    assert Link(delay=0.0, rate=1.0).window_chunks * CHUNK_BYTES == MIN_WINDOW_BYTES


def test_proxy_round_trip_is_twice_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    delay = 0.02
    took: list[float] = []
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def record_sleep(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", record_sleep)

    async def visit(port: int) -> None:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(HERE, port)
        for _ in range(4):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            took.append(time.monotonic() - began)
            began = time.monotonic()
        writer.close()

    asyncio.run(with_proxy(delay, FAST, echo, visit))
    assert took[0] >= 4 * delay  # with the handshake's
    assert min(took[1:]) >= 2 * delay
    # A loaded machine takes longer, but the proxy adds no more than this.
    assert max(pauses[2:]) <= delay
    assert len(pauses) <= 2 * len(took) + 2  # with those of the connection's ends


def test_proxy_keeps_rate_and_bytes() -> None:
    sent = bytes(range(256)) * 4000  # 1 MB
    took = []

    async def visit(port: int) -> None:
        reader, writer = await asyncio.open_connection(HERE, port)
        began = time.monotonic()
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        took.append(time.monotonic() - began)
        writer.close()

    asyncio.run(with_proxy(0.0, 4e6, echo, visit))
    assert took[0] > len(sent) / 4e6


def test_proxy_slow_reader_delays_no_other() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"f":
            writer.write(bytes(16 << 20))
        else:
            writer.write(b"x")
        writer.close()

    async def visit(port: int) -> None:
        _, sleeper = await asyncio.open_connection(HERE, port, limit=1)
        sleeper.write(b"f")
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"x")
        assert await asyncio.wait_for(reader.readexactly(1), 60) == b"x"
        writer.close()
        sleeper.transport.abort()

    asyncio.run(with_proxy(0.001, FAST, flood, visit))


def test_proxy_closes_when_server_is_gone() -> None:
    async def visit() -> None:
        server = await asyncio.start_server(echo, BEHIND, 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with await DelayProxy(0.001, FAST).serve(HERE, BEHIND, port):
            reader, writer = await asyncio.open_connection(HERE, port)
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
            await wait_for_end()

    asyncio.run(visit())


#: Copies what is called good; writes down all that it was given.
XRDCP = """#!/bin/sh
echo "$@" >> "$0.log"
for word; do from=$to; to=$word; done
case $from in
*hold*) sleep 30 ;;
*bad*) printf 'Run: [ERROR] no \\000such file\\n' >&2; exit 54 ;;
esac
"""


@pytest.fixture
def xrdcp(tmp_path: Path) -> Path:
    program = tmp_path / "xrdcp"
    program.write_text(XRDCP)
    program.chmod(0o755)
    return program


@pytest.fixture
def service(xrdcp: Path) -> Iterator[str]:
    """Its address."""
    with serve_http(make_handler(TransferQueue(str(xrdcp)))) as port:
        yield f"http://127.0.0.1:{port}"


def ask(url: str, document: object = None, method: str = "GET") -> Any:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data=data, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def submit(service: str, source: str, target: str = "target", checksum: str = "") -> str:
    file = {
        "sources": [source],
        "destinations": [target],
        "metadata": {"request_id": target},
        "filesize": 7,
        "checksum": checksum,
    }
    document = {"files": [file], "params": {"job_metadata": {"issuer": "rucio"}}}
    return str(ask(f"{service}/jobs", document, "POST")["job_id"])


def settled(service: str, job: str) -> tuple[Any, Any]:
    """Return the final state of a job, and of its file."""
    while True:
        (status,) = ask(f"{service}/jobs/{job}")
        if status["job_state"] not in ("SUBMITTED", "ACTIVE"):
            return status, *status["files"]
        time.sleep(0.02)


def test_fts_copies_file_with_checksum(service: str, xrdcp: Path) -> None:
    job = submit(service, "root://a//good", "root://b//good", checksum="ADLER32:0A")
    status, file = settled(service, job)
    assert (status["http_status"], status["job_state"]) == ("200 Ok", "FINISHED")
    assert file["file_metadata"] == {"request_id": "root://b//good"}
    assert file["start_time"] <= file["finish_time"]
    words = Path(f"{xrdcp}.log").read_text().split()
    assert words[-2:] == ["root://a//good", "root://b//good"]
    for option in ("--tpc only", "--rm-bad-cksum --cksum adler32:0a"):
        assert option in " ".join(words)


def test_fts_reports_reason_of_failure(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status, file = settled(service, submit(service, "bad"))
    assert (status["job_state"], file["reason"]) == ("FAILED", "Run: [ERROR] no such file")
    monkeypatch.setattr(fts_service, "COPY_TIMEOUT_S", 0.1)
    status, file = settled(service, submit(service, "hold"))
    assert (status["job_state"], file["reason"]) == ("FAILED", "not done after 0 s")


def test_fts_reports_several_and_unknown_jobs(service: str) -> None:
    submitted_job = submit(service, "good")
    statuses = ask(f"{service}/jobs/{submitted_job},nobody")
    assert [job["http_status"] for job in statuses] == ["200 Ok", "404 Not Found"]
