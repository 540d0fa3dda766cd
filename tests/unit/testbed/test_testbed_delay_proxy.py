"""The delaying proxy: timing and behavior for readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from treehammer.testbed.programs.delay_proxy import MIN_WINDOW_BYTES, DelayProxy, Link

FAST = 1e12
HERE, BEHIND = "127.0.0.1", "127.0.0.2"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def with_proxy(
    delay: float, rate: float, serve: Talk, visit: Callable[[int], Awaitable[None]]
) -> None:
    """Visit a server behind a proxy."""
    server = await asyncio.start_server(serve, BEHIND, 0)
    port = server.sockets[0].getsockname()[1]
    proxy = await DelayProxy(delay, rate).serve(HERE, BEHIND, port)
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
    assert Link(delay=0.01, rate=125e6).window_bytes > 2 * 0.01 * 125e6
    assert Link(delay=0.0, rate=1.0).window_bytes == MIN_WINDOW_BYTES


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
