"""Transfers of whole files over XRootD, block after block."""

from __future__ import annotations

import zlib
from typing import Any, Callable, Iterator

from ....record.operation_steps import READ_FILE
from ..content import BLOCK, iterate_blocks
from ..operation import Flight

#: Ends a flight: flight, status, file, failure class that replaces a success.
EndFlight = Callable[[Flight, Any, Any, str], None]


class XrootdTransfer:
    """A file that is opened, read or written as a whole, and closed.

    Args:
        file: file object of the bindings, not open.
        flight: the operation; it ends when the file is closed.
        timeout_s: time limit of each request, and of the operation.
        end: ends the flight.
    """

    def __init__(self, file: Any, flight: Flight, timeout_s: int, end: EndFlight) -> None:
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
