"""Files of the XRootD client: operations on open files, and transfers of whole ones block by block."""

from __future__ import annotations

import zlib
from threading import Lock
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .....collectors.record.operation_steps import CLOSE, OPEN, READ_FILE, STAT, VECTOR_READ
from ..operation import BLOCK, Flight, iterate_blocks

#: Ends a flight: flight, status, server, response.
EndHandleFlight = Callable[[Flight, Any, str, Any], None]
#: Sends an open: file, operation's file, number of the client, callback; returns the status.
OpenFile = Callable[..., Any]


class _Handle:
    """An open file, the operations that wait for its open, and the close that waits for them."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.opened: Any = None
        self.server = ""
        self.pending: List[Flight] = []
        self.in_flight = 0
        self.closing: Optional[Flight] = None


class XrootdHandles:
    """Files that clients hold open, each known by its client and a number.

    Operations on a file wait for its open, a close for the operations before it.

    Args:
        new_file: makes a file object of the bindings.
        open_file: sends an open.
        end: ends a flight.
        timeout_s: time limit of each request.
    """

    def __init__(
        self, new_file: Callable[[], Any], open_file: OpenFile, end: EndHandleFlight, timeout_s: int
    ) -> None:
        self._new_file, self._open_file, self._end = new_file, open_file, end
        self._timeout_s = timeout_s
        self._handles: Dict[Tuple[int, int], _Handle] = {}
        self._lock = Lock()

    def start(self, flight: Flight) -> None:
        """Send an operation, or keep it until it may be sent."""
        operation = flight.operation
        key = operation.client, operation.handle
        flight.send()
        if operation.name == OPEN:
            handle = self._handles[key] = _Handle(self._new_file())
            self._open(handle, flight)
            return
        with self._lock:
            handle = self._handles[key]
            if handle.opened is None:
                handle.pending.append(flight)
                return
        self._use(handle, flight)

    def _open(self, handle: _Handle, flight: Flight) -> None:
        def opened(status: Any, _response: Any, _hosts: Any) -> None:
            handle.server = find_server(handle.file)
            self._end(flight, status, handle.server, None)
            with self._lock:
                handle.opened = status
                flights, handle.pending = handle.pending, []
            for pending_flight in flights:
                pending_flight.release()
                self._use(handle, pending_flight)

        operation = flight.operation
        status = self._open_file(handle.file, operation.file, operation.client, opened)
        if not status.ok:
            opened(status, None, None)

    def _use(self, handle: _Handle, flight: Flight) -> None:
        if not handle.opened.ok:
            self._end(flight, handle.opened, handle.server, None)
            return
        with self._lock:
            closes = flight.operation.name == CLOSE
            if closes and handle.in_flight:
                handle.closing = flight
                return
            handle.in_flight += 1
        self._send(handle, flight)

    def _send(self, handle: _Handle, flight: Flight) -> None:
        operation, file, timeout = flight.operation, handle.file, self._timeout_s

        def answered(status: Any, response: Any, _hosts: Any) -> None:
            self._end(flight, status, handle.server, response)
            with self._lock:
                handle.in_flight -= 1
                closing = None if handle.in_flight else handle.closing
                if closing is not None:
                    handle.closing = None
                    handle.in_flight += 1
            if closing is not None:
                closing.release()
                self._send(handle, closing)

        if operation.name == CLOSE:
            status = file.close(timeout=timeout, callback=answered)
        elif operation.name == STAT:
            status = file.stat(True, timeout=timeout, callback=answered)
        elif operation.name == VECTOR_READ:
            chunks = list(operation.chunks)
            status = file.vector_read(chunks, timeout=timeout, callback=answered)
        else:
            offset, size = operation.chunks[0]
            status = file.read(offset, size, timeout=timeout, callback=answered)
        if not status.ok:
            answered(status, None, None)


def find_server(file: Any) -> str:
    """Return ``host:port`` of the server that has a file; '' if it is not open."""
    return str(file.get_property("DataServer") or "").rpartition("@")[2]


#: Ends a flight: flight, status, file, failure class that replaces a success.
EndTransferFlight = Callable[[Flight, Any, Any, str], None]


class XrootdTransfer:
    """A file that is opened, read or written as a whole, and closed.

    Args:
        file: file object of the bindings, not open.
        flight: the operation; it ends when the file is closed.
        timeout_s: time limit of each request, and of the operation.
        end: ends the flight.
    """

    def __init__(self, file: Any, flight: Flight, timeout_s: int, end: EndTransferFlight) -> None:
        self._file, self._flight, self._timeout_s, self._end = file, flight, timeout_s, end
        self._position, self._adler32 = 0, 1
        self._is_open = False
        source = flight.operation.file
        self._reads = flight.operation.name == READ_FILE
        self._blocks: Iterator[bytes] = iterate_blocks(
            source.number, 0 if self._reads else source.size
        )
        #: Kept until it is sent.
        self._block = b""
        self._failed: Any = None

    def start(self, url: str, flags: int, mode: int) -> None:
        """Send the open."""
        self._check(
            self._file.open(
                url, flags, mode, timeout=self._timeout_s, callback=self._finish_request
            )
        )

    def _finish_request(self, status: Any, response: Any, _hosts: Any) -> None:
        if not status.ok:
            self._failed = status
            self._close()
        elif self._flight.has_lasted(self._timeout_s):
            self._flight.fail("timeout")
            self._close()
        elif self._reads:
            self._take_block(response or b"")
        else:
            self._write_block()

    def _take_block(self, block: bytes) -> None:
        if self._is_open:
            self._adler32 = zlib.adler32(block, self._adler32)
            self._position += len(block)
            if len(block) < BLOCK:
                self._close()
                return
        self._is_open = True
        self._check(
            self._file.read(
                self._position, BLOCK, timeout=self._timeout_s, callback=self._finish_request
            )
        )

    def _write_block(self) -> None:
        block = next(self._blocks, None)
        if block is None:
            self._flight.adler32 = self._adler32
            self._close()
            return
        self._block, position = block, self._position
        self._adler32 = zlib.adler32(block, self._adler32)
        self._position += len(block)
        self._check(
            self._file.write(
                block,
                position,
                len(block),
                timeout=self._timeout_s,
                callback=self._finish_request,
            )
        )

    def _check(self, status: Any) -> None:
        """Close the file if a request could not even be sent."""
        if not status.ok:
            self._failed = status
            self._close()

    def _close(self) -> None:
        status = self._file.close(timeout=self._timeout_s, callback=self._finish)
        if not status.ok:
            self._finish(status, None, None)

    def _finish(self, status: Any, _response: Any, _hosts: Any) -> None:
        # A file that did not open cannot be closed: the first failure counts.
        self._end(self._flight, self._failed or status, self._file, self._judge())

    def _judge(self) -> str:
        if not self._reads:
            return ""
        source = self._flight.operation.file
        is_correct = self._position == source.size and source.adler32 in (None, self._adler32)
        return "" if is_correct else "wrong-data"
