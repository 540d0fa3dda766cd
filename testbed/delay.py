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
CHUNK = 1 << 16
#: Bytes under way on one connection in one direction, for each that a round trip holds.
WINDOWS = 1.25
LEAST_WINDOW = 1 << 20


@dataclass
class Cable:
    """One direction, which all connections share.

    Attributes:
        delay: seconds from one end to the other.
        rate: bytes in a second.
        free_at: when it has sent all that it was given, in the loop's time.
    """

    delay: float
    rate: float
    free_at: float = 0.0

    @property
    def window(self) -> int:
        """Bytes that one connection may have under way."""
        return max(LEAST_WINDOW, int(WINDOWS * 2 * self.delay * self.rate))

    def send(self, size: int, now: float) -> float:
        """When the last of so many bytes, given now, has arrived."""
        self.free_at = max(self.free_at, now) + size / self.rate
        return self.free_at + self.delay


class _Pipe:
    """One direction of one connection: what was read, and when it is due at the other end."""

    def __init__(self, cable: Cable, begins: float) -> None:
        self.cable = cable
        self.begins = begins  # nothing enters the cable before, in the loop's time
        self.under_way: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.changed = asyncio.Event()

    async def fill(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(CHUNK):
            self._put(self.cable.send(len(data), max(loop.time(), self.begins)), data)
            while self.size > self.cable.window:
                self.changed.clear()
                await self.changed.wait()
        self._put(max(loop.time(), self.begins) + self.cable.delay, b"")

    def _put(self, due: float, data: bytes) -> None:
        self.under_way.append((due, data))
        self.size += len(data)
        self.changed.set()

    async def drain(self, writer: asyncio.StreamWriter) -> None:
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


class Proxy:
    """Both directions of a cable, for any number of connections.

    Args:
        delay: seconds one way.
        rate: bytes in a second, each way.
    """

    def __init__(self, delay: float, rate: float) -> None:
        self.there = Cable(delay, rate)
        self.back = Cable(delay, rate)

    async def serve(self, listen: str, target: str, port: int) -> asyncio.Server:
        """Listen on a port and lead to the same one of ``target``."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # at the end; a stream's task would complain
                await self._lead(reader, writer, target, port)

        return await asyncio.start_server(connected, listen, port, limit=CHUNK)

    async def _lead(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, port: int
    ) -> None:
        ends = [writer]
        accepted = asyncio.get_running_loop().time()
        try:
            far_reader, far_writer = await asyncio.open_connection(target, port, limit=CHUNK)
            ends.append(far_writer)
            for end in ends:
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there = _Pipe(self.there, accepted + self.there.delay + self.back.delay)
            back = _Pipe(self.back, accepted)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(there.fill(reader))
                tasks.create_task(there.drain(far_writer))
                tasks.create_task(back.fill(far_reader))
                tasks.create_task(back.drain(writer))
        except* OSError:  # one end is gone: the other learns it
            pass
        finally:
            for end in ends:
                end.close()


async def run(words: Sequence[str]) -> None:
    """Serve until a signal ends it."""
    delay_ms, rate_mbit, listen, target, *ports = words
    proxy = Proxy(float(delay_ms) / 1e3, float(rate_mbit) * 1e6 / 8)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    for port in ports:
        await proxy.serve(listen, target, int(port))
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
