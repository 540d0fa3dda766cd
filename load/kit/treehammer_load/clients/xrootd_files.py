"""Files of the XRootD client: operations on open files, and transfers of whole ones block by block."""

from __future__ import annotations

import zlib
from threading import Lock
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from .....collectors.record.operation_steps import CLOSE, OPEN, READ, READ_FILE, STAT, VECTOR_READ
from ..operation import BLOCK, Flight, Operation, iterate_blocks

#: Ends a flight: flight, status, file, response.
EndFlight = Callable[[Flight, Any, Any, Any], None]
#: Sends an open: file, operation's file, number of the client, callback; returns the status.
OpenFile = Callable[..., Any]


class _Handle:
    """An open file, the operations that wait for its open, and the close that waits for them."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.opened: Any = None
        self.pending: List[Flight] = []
        self.in_flight = 0
        self.closing: Optional[Flight] = None


class XrootdHandles:
    """Files that clients hold open: each client's only one, and those that a recording numbers.

    Operations on a file wait for its open, a close for the operations before it.  The only file of a
    client is opened again by the next read after a failure.

    Args:
        new_file: makes a file object of the bindings.
        open_file: sends an open.
        end: ends a flight.
        timeout_s: time limit of each request.
    """

    def __init__(
        self, new_file: Callable[[], Any], open_file: OpenFile, end: EndFlight, timeout_s: int
    ) -> None:
        self._new_file, self._open_file, self._end = new_file, open_file, end
        self._timeout_s = timeout_s
        self._handles: Dict[Tuple[int, int], _Handle] = {}
        # A file must not be collected before its last callback.
        self._closing: Set[_Handle] = set()
        self._lock = Lock()

    def start(self, flight: Flight) -> None:
        """Send an operation, or keep it until it may be sent."""
        operation = flight.operation
        key = operation.client, operation.handle
        flight.send()
        if operation.name not in (OPEN, STAT, READ, VECTOR_READ, CLOSE):
            flight.fail("not-supported")
            return
        with self._lock:
            handle = self._handles.get(key)
            opens = operation.name != CLOSE if handle is None else operation.name == OPEN
            if opens:
                handle = self._handles[key] = _Handle(self._new_file())
            waits = handle is not None and handle.opened is None
            if handle is not None and waits:
                handle.pending.append(flight)
        if handle is None:
            flight.fail("other")  # its open failed
        elif opens:
            self._open(handle, flight)
        elif not waits:
            self._use(handle, flight)

    def open_once(self, flight: Flight) -> None:
        """Open a file, and close it again; the closing is no part of the operation."""
        handle, operation = _Handle(self._new_file()), flight.operation
        self._closing.add(handle)

        def opened(status: Any, _response: Any, _hosts: Any) -> None:
            self._end(flight, status, handle.file, None)
            if status.ok:
                self._close(handle)
            else:
                self._closing.discard(handle)

        flight.send()
        status = self._open_file(handle.file, operation.file, operation.client, opened)
        if not status.ok:
            opened(status, None, None)

    def _open(self, handle: _Handle, flight: Flight) -> None:
        operation = flight.operation

        def opened(status: Any, _response: Any, _hosts: Any) -> None:
            with self._lock:
                handle.opened = status
                flights, handle.pending = handle.pending, []
            if not status.ok:
                self._forget(handle, flight)
            for pending_flight in flights:
                if pending_flight.operation.name == OPEN:
                    self._end(pending_flight, status, handle.file, None)
                else:
                    pending_flight.release()
                    self._use(handle, pending_flight)

        status = self._open_file(handle.file, operation.file, operation.client, opened)
        if not status.ok:
            opened(status, None, None)

    def _forget(self, handle: _Handle, flight: Flight) -> bool:
        """Forget the only file of a client; return whether it was still known."""
        key = flight.operation.client, flight.operation.handle
        with self._lock:
            is_known = key[1] < 0 and self._handles.get(key) is handle
            if is_known:
                del self._handles[key]
        return is_known

    def _use(self, handle: _Handle, flight: Flight) -> None:
        if not handle.opened.ok:
            self._end(flight, handle.opened, handle.file, None)
            return
        with self._lock:
            closes = flight.operation.name == CLOSE
            if closes and handle.in_flight:
                handle.closing = flight
                return
            handle.in_flight += 1
        self._send(handle, flight)

    def _send(self, handle: _Handle, flight: Flight) -> None:
        operation, file = flight.operation, handle.file

        def answered(status: Any, response: Any, _hosts: Any) -> None:
            if operation.name == CLOSE:
                self._forget(handle, flight)
            elif not status.ok and self._forget(handle, flight):
                self._close(handle)
            self._end(flight, status, file, response)
            with self._lock:
                handle.in_flight -= 1
                closing = None if handle.in_flight else handle.closing
                if closing is not None:
                    handle.closing = None
                    handle.in_flight += 1
            if closing is not None:
                closing.release()
                self._send(handle, closing)

        status = self._request(file, operation, answered)
        if not status.ok:
            answered(status, None, None)

    def _request(self, file: Any, operation: Operation, callback: Callable[..., None]) -> Any:
        """Send the request of an operation on a file; return its status."""
        timeout = self._timeout_s
        if operation.name == CLOSE:
            return file.close(timeout=timeout, callback=callback)
        if operation.name == STAT:
            return file.stat(True, timeout=timeout, callback=callback)
        if operation.name == VECTOR_READ:
            return file.vector_read(list(operation.chunks), timeout=timeout, callback=callback)
        offset, size = operation.chunks[0]
        return file.read(offset, size, timeout=timeout, callback=callback)

    def _close(self, handle: _Handle) -> None:
        """Close a file, whatever comes of it."""
        self._closing.add(handle)
        status = handle.file.close(
            timeout=self._timeout_s, callback=lambda *_: self._closing.discard(handle)
        )
        if not status.ok:
            self._closing.discard(handle)


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
        status = self._file.open(
            url, flags, mode, timeout=self._timeout_s, callback=self._finish_request
        )
        if not status.ok:  # the close of such a file calls nobody back
            self._finish(status, None, None)

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
                block, position, len(block), timeout=self._timeout_s, callback=self._finish_request
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
        source = self._flight.operation.file
        is_correct = self._position == source.size and source.adler32 in (None, self._adler32)
        failure = "wrong-data" if self._reads and not is_correct else ""
        # A file that did not open cannot be closed: the first failure counts.
        self._end(self._flight, self._failed or status, self._file, failure)
