"""A TCP proxy with delay and rate: distance where no link can be made.

Runs as a separate program, which needs nothing else of Treehammer::

    python delay_proxy.py RTT_MS RATE_MBIT CONTROL_PORT LISTEN_HOST TARGET_HOST PORT[:TARGET_PORT]...

Each port of ``LISTEN_HOST`` leads to the same port of ``TARGET_HOST``, or to the one after the colon.
A port 0 is chosen by the system; a line with all ports is printed once they listen. Every byte arrives
half of ``RTT_MS`` after it passed the link, whose rate all connections share per direction; a rate of 0
means no limit. The first bytes of a connection pay for the handshake's round trip, because the kernel
accepted it already. No connection waits for another one's reader. TCP itself sees no distance: windows
do not grow slowly and nothing is lost.

A datagram ``RTT_MS RATE_MBIT`` to ``CONTROL_PORT`` on loopback (0: none) sets both, any other one
changes nothing; the answer is what holds then.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Coroutine, List, Optional, Sequence, Tuple

#: Bytes per read; half a millisecond at 1 Gbit/s.
CHUNK_BYTES = 1 << 16
#: Multiple of a round trip's bytes that one connection may have under way per direction.
WINDOW_FACTOR = 1.25
MIN_WINDOW_BYTES = 1 << 20
#: Rate in Mbit/s that stands for no limit.
UNLIMITED_MBIT = 100_000.0
MAX_RTT_MS = 10_000.0


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


class PreciseSelector(selectors.DefaultSelector):
    """A selector that wakes to the microsecond; epoll itself rounds its waits up to milliseconds.

    A round trip of 20.7 ms, which is twice 10.35 ms, would take at least 22 ms.
    """

    def select(self, timeout: Optional[float] = None) -> List[Tuple[selectors.SelectorKey, int]]:
        """Wait for events, or until the timeout has passed."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        select.select([self.fileno()], [], [], timeout)
        return super().select(0)


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
    under_way: asyncio.Queue[Tuple[float, bytes]] = asyncio.Queue()
    has_room = asyncio.Event()

    async def write_when_due() -> None:
        while True:
            due_s, data = await under_way.get()
            has_room.set()
            if (wait := due_s - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async def read_chunks() -> None:
        while data := await reader.read(CHUNK_BYTES):
            # The window grows with the distance, which may change while the connection lasts.
            while under_way.qsize() >= link.window_chunks:
                has_room.clear()
                await has_room.wait()
            due_s = link.schedule_send(len(data), max(loop.time(), begins))
            under_way.put_nowait((due_s, data))
        under_way.put_nowait((max(loop.time(), begins) + link.delay, b""))

    await _run_both(write_when_due(), read_chunks())


async def _run_both(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until all have ended; the first error cancels the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class DelayProxy(asyncio.DatagramProtocol):
    """Both directions of a link, for any number of connections, and its control port.

    Args:
        rtt_ms: round trip.
        rate_mbit: rate of each direction, 0 for no limit.
    """

    def __init__(self, rtt_ms: float, rate_mbit: float) -> None:
        self.forward = Link(0.0, 1.0)
        self.backward = Link(0.0, 1.0)
        self._settings = (0.0, 0.0)
        if not self.change(f"{rtt_ms} {rate_mbit}"):
            raise ValueError(f"RTT_MS is 0 to {MAX_RTT_MS:g}, RATE_MBIT 0 to 1000000")

    def change(self, words: str) -> bool:
        """Set round trip and rate from a text; False if it is not valid."""
        try:
            rtt_ms, rate_mbit = map(float, words.split())
        except ValueError:
            return False
        if not (0 <= rtt_ms <= MAX_RTT_MS and 0 <= rate_mbit <= 1e6):
            return False
        self._settings = rtt_ms, rate_mbit
        for link in (self.forward, self.backward):
            link.delay = rtt_ms / 2e3
            link.rate = (rate_mbit or UNLIMITED_MBIT) * 1e6 / 8
        return True

    def connection_made(self, transport: Any) -> None:
        """Keep the control port's transport."""
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Tuple[Any, int]) -> None:
        """Change the settings as asked, and answer with those that hold."""
        self.change(data.decode("ascii", "replace"))
        answer = f"{self._settings[0]:.10g} {self._settings[1]:.10g}"
        self._transport.sendto(answer.encode(), addr)

    async def serve(
        self, listen: str, target: str, port: int, target_port: int = 0
    ) -> asyncio.Server:
        """Listen on a port and forward to ``target_port`` of ``target``, by default the same."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # at shutdown
                await self._forward_connection(reader, writer, target, target_port or port)

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
            await _run_both(
                _forward(self.forward, reader, far_writer, accepted + handshake),
                _forward(self.backward, far_reader, writer, accepted),
            )
        except OSError:  # one end closed: the other end sees it
            pass
        finally:
            for end in ends:
                end.close()


async def run_proxy(words: Sequence[str]) -> None:
    """Serve until a signal arrives."""
    rtt_ms, rate_mbit, control_port, listen, target, *ports = words
    proxy = DelayProxy(float(rtt_ms), float(rate_mbit))
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if int(control_port):
        await loop.create_datagram_endpoint(
            lambda: proxy, local_addr=("127.0.0.1", int(control_port))
        )
    servers = []
    for text in ports:
        port, _, target_port = text.partition(":")
        servers.append(await proxy.serve(listen, target, int(port), int(target_port or port)))
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await ended.wait()


if __name__ == "__main__":
    asyncio.SelectorEventLoop(PreciseSelector()).run_until_complete(run_proxy(sys.argv[1:]))
