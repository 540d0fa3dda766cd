"""A long cable for machines where no network can be made: a TCP proxy with delay and rate.

Started as a program of its own::

    python delay.py DELAY_MS RATE_MBIT LISTEN_HOST TARGET_HOST PORT...

Each port of ``LISTEN_HOST`` leads to the same one of ``TARGET_HOST``.  What it gets right: every
byte arrives ``DELAY_MS`` after it has passed the cable, whose rate all connections share in each
direction; the three-way handshake costs a round trip, which the first bytes of a connection pay,
since the kernel has accepted it by then; no connection waits for another one's reader.  What it
cannot: TCP sees no distance, so windows do not grow slowly and nothing is lost.

Standard library only.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

#: Bytes read at a time; at 1 Gbit/s they take half a millisecond.
CHUNK_BYTES = 1 << 16
#: Bytes under way on one connection in one direction, for each that a round trip holds.
WINDOW_FACTOR = 1.25
MIN_WINDOW_BYTES = 1 << 20


@dataclass
class Link:
    """One direction, which all connections share.

    Attributes:
        delay: seconds from one end to the other.
        rate: bytes in a second.
        free_at: when it has sent all that it was given, in the loop's time.
    """

    delay: float
    rate: float
    busy_until: float = 0.0

    @property
    def window_bytes(self) -> int:
        """Bytes that one connection may have under way."""
        return max(MIN_WINDOW_BYTES, int(WINDOW_FACTOR * 2 * self.delay * self.rate))

    def schedule_send(self, size: int, now: float) -> float:
        """When the last of so many bytes, given now, has arrived."""
        self.busy_until = max(self.busy_until, now) + size / self.rate
        return self.busy_until + self.delay


class _DelayedStream:
    """One direction of one connection: what was read, and when it is due at the other end."""

    def __init__(self, cable: Link, begins: float) -> None:
        self.cable = cable
        self.begins = begins  # nothing enters the cable before, in the loop's time
        self.under_way: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.changed = asyncio.Event()

    async def _read_into_queue(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(CHUNK_BYTES):
            self._enqueue(self.cable.schedule_send(len(data), max(loop.time(), self.begins)), data)
            while self.size > self.cable.window_bytes:
                self.changed.clear()
                await self.changed.wait()
        self._enqueue(max(loop.time(), self.begins) + self.cable.delay, b"")

    def _enqueue(self, due: float, data: bytes) -> None:
        self.under_way.append((due, data))
        self.size += len(data)
        self.changed.set()

    async def _write_when_due(self, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self.under_way:
                self.changed.clear()
                await self.changed.wait()
            due, data = self.under_way[0]
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            self.under_way.popleft()
            self.size -= len(data)
            self.changed.set()


class DelayProxy:
    """Both directions of a cable, for any number of connections.

    Args:
        delay: seconds one way.
        rate: bytes in a second, each way.
    """

    def __init__(self, delay: float, rate: float) -> None:
        self.there = Link(delay, rate)
        self.back = Link(delay, rate)

    async def serve(self, listen: str, target: str, port: int) -> asyncio.Server:
        """Listen on a port and lead to the same one of ``target``."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # at the end; a stream's task would complain
                await self._forward_connection(reader, writer, target, port)

        return await asyncio.start_server(connected, listen, port, limit=CHUNK_BYTES)

    async def _forward_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, port: int
    ) -> None:
        ends = [writer]
        accepted = asyncio.get_running_loop().time()
        try:
            far_reader, far_writer = await asyncio.open_connection(target, port, limit=CHUNK_BYTES)
            ends.append(far_writer)
            for end in ends:
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there = _DelayedStream(self.there, accepted + self.there.delay + self.back.delay)
            back = _DelayedStream(self.back, accepted)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(there._read_into_queue(reader))
                tasks.create_task(there._write_when_due(far_writer))
                tasks.create_task(back._read_into_queue(far_reader))
                tasks.create_task(back._write_when_due(writer))
        except* OSError:  # one end is gone: the other learns it
            pass
        finally:
            for end in ends:
                end.close()


async def run_proxy(words: Sequence[str]) -> None:
    """Serve until a signal ends it."""
    delay_ms, rate_mbit, listen, target, *ports = words
    proxy = DelayProxy(float(delay_ms) / 1e3, float(rate_mbit) * 1e6 / 8)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    for port in ports:
        await proxy.serve(listen, target, int(port))
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(run_proxy(sys.argv[1:]))
