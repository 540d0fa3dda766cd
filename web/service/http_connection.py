"""A client's connection, bounded before anybody has shown a token: headers in size, waiting in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of a request's line and headers, and of what follows a body in chunks.
MAX_HEADER_BYTES = 65_536
#: Seconds until the headers of a request are there: of the first one, since the connection is.
HEADER_TIMEOUT_S = 10.0
#: Seconds that a client has to send the rest of a request that was refused before it was read.
REFUSED_BODY_TIMEOUT_S = 60.0
#: Seconds that a client has to say goodbye, which TLS asks for.
CLOSE_TIMEOUT_S = 1.0

_TOO_LARGE_BODY = json.dumps(
    {"error": f"the headers are larger than {MAX_HEADER_BYTES} bytes"}
).encode()
_HEADERS_TOO_LARGE_RESPONSE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_TOO_LARGE_BODY), _TOO_LARGE_BODY)
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's, which by itself would keep headers of any size and wait for them for ever."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        #: Whether headers are awaited or arrive, how many bytes of them there are, and of how many
        #: the piece is that the parser looks at.
        self._in_head = True
        self._head_bytes = 0
        self._piece_bytes = 0
        self._until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has come."""
        super().connection_made(transport)
        self._close_after(HEADER_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """They are gone."""
        self._cancel_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came; of headers no more than there may be."""
        if self._head_bytes >= MAX_HEADER_BYTES:
            return  # refused
        while data and self._head_bytes < MAX_HEADER_BYTES and not self.transport.is_closing():
            size = MAX_HEADER_BYTES - self._head_bytes if self._in_head else len(data)
            piece, data = data[:size], data[size:]
            self._piece_bytes = len(piece)
            super().data_received(piece)
            self._head_bytes = self._head_bytes + len(piece) if self._in_head else 0
        if self._head_bytes >= MAX_HEADER_BYTES:
            self._refuse_headers()
        elif self._is_idle and self._until is None and not self.transport.is_closing():
            self._close_after(HEADER_TIMEOUT_S if self._in_head else REFUSED_BODY_TIMEOUT_S)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being handled."""
        return self.cycle is None or self.cycle.response_complete

    def _refuse_headers(self) -> None:
        if self._is_idle:
            self.transport.write(_HEADERS_TOO_LARGE_RESPONSE)
        # Nothing more is taken in: a connection that is closed would, while TLS says goodbye.
        self.transport.pause_reading()
        self._cancel_timeout()
        self._until = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def _close_after(self, seconds: float) -> None:
        self._cancel_timeout()
        self._until = self.loop.call_later(seconds, self._close)

    def _cancel_timeout(self) -> None:
        if self._until is not None:
            self._until.cancel()
            self._until = None

    def _close(self) -> None:
        """Close the connection; over TLS, who says no goodbye would keep it for half a minute."""
        self._cancel_timeout()
        if not self.transport.is_closing():
            self.transport.close()
        self._until = self.loop.call_later(CLOSE_TIMEOUT_S, self._abort)

    def _abort(self) -> None:
        if self.transport.get_write_buffer_size():
            self._until = self.loop.call_later(CLOSE_TIMEOUT_S, self._abort)
        else:
            self.transport.abort()

    def shutdown(self) -> None:
        """The service stops: nobody is waited for who has not asked anything."""
        if self._is_idle:
            self._close()
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        """A request is answered, which may have been the last one."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more has been asked for."""
        self._close()

    # What the parser tells.

    def on_headers_complete(self) -> None:
        """The headers of a request are there."""
        self._in_head = False
        self._cancel_timeout()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Bytes of its body."""
        self._in_head = False
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Either a chunk of its body follows or, after the last one, more headers."""
        self._expect_headers()

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._expect_headers()
        super().on_message_complete()

    def _expect_headers(self) -> None:
        # What came before in this piece is none of it.
        self._in_head, self._head_bytes = True, -self._piece_bytes
