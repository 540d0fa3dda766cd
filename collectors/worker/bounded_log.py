"""A log file that keeps its beginning and its end, and notes how much it omits between them."""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Deque

from ..shared_files import DISK_FULL_ERRNOS

#: Bytes kept at each end.
KEPT_BYTES = 512 * 1024


class BoundedLog:
    """A sink for unlimited output that leaves a file of at most about twice ``keep`` bytes.

    Output that does not fit on the disk is dropped: a payload must not fail because of its log.
    """

    def __init__(self, path: str, keep: int = KEPT_BYTES) -> None:
        # The file stays open until close() or the end of the `with` block.
        self._stream = open(path, "wb", buffering=0)  # noqa: SIM115
        self._keep = keep
        self._head = 0
        self._tail: Deque[bytes] = deque()
        self._tail_size = 0
        self._cut = 0
        self._last = b""

    def __enter__(self) -> BoundedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Add ``data``."""
        self._last = (self._last + data)[-4096:]
        room = self._keep - self._head
        if room > 0:
            self._write_through(data[:room])
            self._head += len(data[:room])
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
            while self._tail_size - len(self._tail[0]) >= self._keep:
                dropped = len(self._tail.popleft())
                self._tail_size -= dropped
                self._cut += dropped

    def _write_through(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._stream.write(data) :]
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise

    def read_tail(self, characters: int) -> str:
        """Return the last ``characters`` of the text (at most 4096 bytes), without NUL."""
        text = self._last.decode("utf-8", "replace").replace("\x00", "")
        return text.strip()[-characters:]

    def close(self) -> None:
        """Write the note on omitted bytes and the tail, and close the file."""
        if self._cut:
            self._write_through(f"\n[... {self._cut} bytes omitted ...]\n".encode())
        self._write_through(b"".join(self._tail))
        self._tail.clear()
        self._stream.close()


def print_line(text: str, stream: str = "stdout") -> None:
    """Print a line; after a failure, such as a full disk, stay silent.

    Otherwise Python would exit with a code of its own when it flushes the stream at its end.
    """
    try:
        print(text, file=getattr(sys, stream), flush=True)
    except OSError:
        setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - for the process's lifetime
