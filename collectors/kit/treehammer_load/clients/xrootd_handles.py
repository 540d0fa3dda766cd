"""Operations on open files over XRootD, several files for each client."""

from __future__ import annotations

from threading import Lock
from typing import Any, Callable, Dict, List, Optional, Tuple

from ....record.operation_steps import CLOSE, OPEN, STAT, VECTOR_READ
from ..operation import Flight

#: Ends a flight: flight, status, server, response.
EndFlight = Callable[[Flight, Any, str, Any], None]
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
        self, new_file: Callable[[], Any], open_file: OpenFile, end: EndFlight, timeout_s: int
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
