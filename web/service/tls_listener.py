"""TLS connections whose clients are counted, and limited in time, before the handshake.

asyncio's own server hands a connection over only after its handshake, which may take a minute and
does not count for anybody until then.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from treehammer.web.service.connection_guard import ConnectionGuard

_LOG = logging.getLogger("treehammer.service")

#: Seconds for a TLS handshake.
HANDSHAKE_TIMEOUT_S = 10.0
#: Seconds until the next attempt when no connection can be accepted, for lack of open files.
_RETRY_S = 1.0


class TlsListener:
    """Accepts TLS connections of a listening socket.

    Args:
        listening: the socket.
        context: of the certificate.
        guard: limits the clients.
        make_protocol: makes the protocol of a connection after its handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        guard: ConnectionGuard,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listening = listening
        self._context = context
        self._guard = guard
        self._make_protocol = make_protocol
        self._handshakes: set[asyncio.Task[None]] = set()

    async def accept_forever(self) -> None:
        """Accept connections until cancelled; handshakes in progress end with it."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        try:
            while True:
                try:
                    client, address = await loop.sock_accept(self._listening)
                except OSError as error:
                    _LOG.warning("cannot accept a connection: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                task = asyncio.create_task(self._shake_hands(client, address[0]))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
        finally:
            for task in self._handshakes:
                task.cancel()

    async def _shake_hands(self, client: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self._guard.begin_handshake(address, task):
            client.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                client,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            )
        except OSError:
            pass  # The client left, took too long, or does not speak TLS.
        finally:
            self._guard.end_handshake(task)
