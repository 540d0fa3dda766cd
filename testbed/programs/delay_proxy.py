"""A TCP proxy with delay and rate, for machines without network namespaces.

Runs as a separate program::

    python delay_proxy.py DELAY_MS RATE_MBIT LISTEN_HOST TARGET_HOST PORT...

Each port of ``LISTEN_HOST`` leads to the same port of ``TARGET_HOST``. Every byte arrives
``DELAY_MS`` after it passed the link, whose rate all connections share per direction. The first
bytes of a connection pay for the handshake's round trip, because the kernel accepted it already.
No connection waits for another one's reader. TCP itself sees no distance: windows do not grow
slowly and nothing is lost.

Standard library only.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

#: Bytes per read; half a millisecond at 1 Gbit/s.
CHUNK_BYTES = 1 << 16
#: Multiple of a round trip's bytes that one connection may have under way per direction.
WINDOW_FACTOR = 1.25
MIN_WINDOW_BYTES = 1 << 20


@dataclass
class Link:
    """One direction of the link, shared by all connections.

    Attributes:
        delay: seconds one way.
        rate: bytes per second.
        busy_until: when the link is idle again, in the loop's time.
    """

    delay: float
    rate: float
    busy_until: float = 0.0

    @property
    def window_chunks(self) -> int:
        """Maximum chunks of one connection under way."""
        window = int(WINDOW_FACTOR * 2 * self.delay * self.rate)
        return max(MIN_WINDOW_BYTES, window) // CHUNK_BYTES

    def schedule_send(self, size: int, now: float) -> float:
        """Return the arrival time of the last of ``size`` bytes sent now."""
        self.busy_until = max(self.busy_until, now) + size / self.rate
        return self.busy_until + self.delay


async def _forward(
    link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begins: float
) -> None:
    """Forward one direction of a connection.

    Args:
        link: shared with other connections.
        reader: of the sender.
        writer: to the receiver.
        begins: nothing enters the link earlier, in the loop's time.
    """
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(link.window_chunks)

    async def write_when_due() -> None:
        while True:
            due, data = await under_way.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_when_due())
        while data := await reader.read(CHUNK_BYTES):
            due = link.schedule_send(len(data), max(loop.time(), begins))
            await under_way.put((due, data))
        await under_way.put((max(loop.time(), begins) + link.delay, b""))


class DelayProxy:
    """Both directions of a link, for any number of connections.

    Args:
        delay: seconds one way.
        rate: bytes per second and direction.
    """

    def __init__(self, delay: float, rate: float) -> None:
        self.forward = Link(delay, rate)
        self.backward = Link(delay, rate)

    async def serve(self, listen: str, target: str, port: int) -> asyncio.Server:
        """Listen on a port and forward to the same port of ``target``."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # at shutdown
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
            handshake = self.forward.delay + self.backward.delay
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_forward(self.forward, reader, far_writer, accepted + handshake))
                tasks.create_task(_forward(self.backward, far_reader, writer, accepted))
        except* OSError:  # one end closed: the other end sees it
            pass
        finally:
            for end in ends:
                end.close()


async def run_proxy(words: Sequence[str]) -> None:
    """Serve until a signal arrives."""
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
