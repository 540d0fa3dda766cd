"""A client's connection, bounded before anybody has shown a token: headers in size, waiting in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of a request's line and headers, and of what follows a body in chunks.
MAX_HEAD = 65_536
#: Seconds until the headers of a request are there: of the first one, since the connection is.
HEAD_S = 10.0
#: Seconds that a client has to send the rest of a request that was refused before it was read.
REST_S = 60.0
#: Seconds that a client has to say goodbye, which TLS asks for.
GOODBYE_S = 1.0

_TOO_LARGE = json.dumps({"error": f"the headers are larger than {MAX_HEAD} bytes"}).encode()
_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_TOO_LARGE), _TOO_LARGE)
)


class Connection(HttpToolsProtocol):
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
        self._end_within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """They are gone."""
        self._be_patient()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came; of headers no more than there may be."""
        if self._head_bytes >= MAX_HEAD:
            return  # refused
        while data and self._head_bytes < MAX_HEAD and not self.transport.is_closing():
            size = MAX_HEAD - self._head_bytes if self._in_head else len(data)
            piece, data = data[:size], data[size:]
            self._piece_bytes = len(piece)
            super().data_received(piece)
            self._head_bytes = self._head_bytes + len(piece) if self._in_head else 0
        if self._head_bytes >= MAX_HEAD:
            self._refuse()
        elif self._answered and self._until is None and not self.transport.is_closing():
            self._end_within(HEAD_S if self._in_head else REST_S)

    @property
    def _answered(self) -> bool:
        """Whether no request is being handled."""
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self) -> None:
        if self._answered:
            self.transport.write(_REFUSAL)
        # Nothing more is taken in: a connection that is closed would, while TLS says goodbye.
        self.transport.pause_reading()
        self._be_patient()
        self._until = self.loop.call_later(GOODBYE_S, self.transport.abort)

    def _end_within(self, seconds: float) -> None:
        self._be_patient()
        self._until = self.loop.call_later(seconds, self._end)

    def _be_patient(self) -> None:
        if self._until is not None:
            self._until.cancel()
            self._until = None

    def _end(self) -> None:
        """Close the connection; over TLS, who says no goodbye would keep it for half a minute."""
        self._be_patient()
        if not self.transport.is_closing():
            self.transport.close()
        self._until = self.loop.call_later(GOODBYE_S, self._cut)

    def _cut(self) -> None:
        if self.transport.get_write_buffer_size():
            self._until = self.loop.call_later(GOODBYE_S, self._cut)
        else:
            self.transport.abort()

    def shutdown(self) -> None:
        """The service stops: nobody is waited for who has not asked anything."""
        if self._answered:
            self._end()
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        """A request is answered, which may have been the last one."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more has been asked for."""
        self._end()

    # What the parser tells.

    def on_headers_complete(self) -> None:
        """The headers of a request are there."""
        self._in_head = False
        self._be_patient()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Bytes of its body."""
        self._in_head = False
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Either a chunk of its body follows or, after the last one, more headers."""
        self._expect_head()

    def on_message_complete(self) -> None:
        """All of it is there."""
        self._expect_head()
        super().on_message_complete()

    def _expect_head(self) -> None:
        # What came before in this piece is none of it.
        self._in_head, self._head_bytes = True, -self._piece_bytes
