"""HTTP connections with limits on header size and waiting time, which apply before authentication."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Maximum bytes of a request line with headers, and of the trailers of a chunked body.
MAX_HEADER_BYTES = 65_536
#: Seconds for the headers of a request to arrive; for the first request from the connection on.
HEADER_TIMEOUT_S = 10.0
#: Seconds for a client to send the rest of a request that was refused before it was read.
REFUSED_BODY_TIMEOUT_S = 60.0
#: Seconds for a client to close a TLS connection.
CLOSE_TIMEOUT_S = 1.0

_TOO_LARGE_BODY = json.dumps(
    {"error": f"the headers are larger than {MAX_HEADER_BYTES} bytes"}
).encode()
_HEADERS_TOO_LARGE_RESPONSE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_TOO_LARGE_BODY), _TOO_LARGE_BODY)
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; by itself it buffers headers of any size and waits forever."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        #: Whether headers are expected, bytes of them received, and bytes of the current piece.
        self._in_head = True
        self._head_bytes = 0
        self._piece_bytes = 0
        self._until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timeout of a new connection."""
        super().connection_made(transport)
        self._close_after(HEADER_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout of a closed connection."""
        self._cancel_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and refuse headers above the size limit."""
        if self._head_bytes >= MAX_HEADER_BYTES:
            return  # Already refused.
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
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _refuse_headers(self) -> None:
        if self._is_idle:
            self.transport.write(_HEADERS_TOO_LARGE_RESPONSE)
        # A closing TLS connection would go on reading.
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
        """Close the connection; abort it if a TLS client does not close its side."""
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
        """Close idle connections when the service stops."""
        if self._is_idle:
            self._close()
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        """Close the connection after its last response."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._close()

    # Callbacks of the parser.

    def on_headers_complete(self) -> None:
        """End the header timeout when the headers are complete."""
        self._in_head = False
        self._cancel_timeout()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Receive bytes of the body."""
        self._in_head = False
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Expect a chunk of the body or, after the last one, trailers."""
        self._expect_headers()

    def on_message_complete(self) -> None:
        """Expect the headers of the next request."""
        self._expect_headers()
        super().on_message_complete()

    def _expect_headers(self) -> None:
        # Earlier bytes of this piece do not belong to these headers.
        self._in_head, self._head_bytes = True, -self._piece_bytes
