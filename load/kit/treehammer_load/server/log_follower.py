"""Lines of a server's log: of a complete one, or of one that is written, rotated and truncated."""

from __future__ import annotations

import os
from typing import IO, Callable, Iterator, Optional

from .log_formats import LogError


def decode_lines(stream: IO[bytes], remainder: Optional[bytearray] = None) -> Iterator[str]:
    """Yield complete lines of a file; text behind the last newline is kept in ``remainder``."""
    pending = bytearray() if remainder is None else remainder
    for line in stream:
        pending += line
        if pending.endswith(b"\n"):
            yield pending.decode("utf-8", "replace")
            pending.clear()


#: Bytes of a log that are searched at a time, from its end, for the first line to be read.
_BLOCK_BYTES = 1_000_000


class LogFollower:
    """Follows a log from an instant.

    Args:
        path: the log.
        wait: waits for new lines; False when they are to be read for the last time.
        since_us: earlier lines at the end of the log are skipped, microseconds since 1970 UTC.
        find_time: returns the instant of a line.

    Raises:
        LogError: it cannot be read.
    """

    def __init__(
        self,
        path: str,
        wait: Callable[[], bool],
        since_us: int,
        find_time: Callable[[str], Optional[int]],
    ) -> None:
        self._path, self._wait = path, wait
        self._remainder = bytearray()
        try:
            self._stream: IO[bytes] = open(path, "rb")  # noqa: SIM115  (closed by close)
        except OSError as error:
            raise LogError(
                f"log = {path!r}: {error.strerror}: name the server's log, and run this test at a site "
                "entry whose jobs run on the server and may read it"
            ) from error
        self._stream.seek(_find_offset(self._stream, since_us, find_time))

    def follow(self) -> Iterator[str]:
        """Yield the lines that are written from now on."""
        continues = True
        while continues:
            # The last lines may have been written during the last wait.
            continues = self._wait()
            yield from decode_lines(self._stream, self._remainder)
            while self._reopen():
                yield from decode_lines(self._stream, self._remainder)

    def close(self) -> None:
        """Close the log."""
        self._stream.close()

    def _reopen(self) -> bool:
        """Open the log again if it was replaced or truncated."""
        try:
            present = os.stat(self._path)
        except OSError:
            return False  # between two logs
        opened = os.fstat(self._stream.fileno())
        if (present.st_dev, present.st_ino) == (opened.st_dev, opened.st_ino):
            if present.st_size < self._stream.tell():
                self._stream.seek(0)
                self._remainder.clear()
                return True
            return False
        try:
            replacement = open(self._path, "rb")  # noqa: SIM115
        except OSError:
            return False  # rotated again
        self._stream.close()
        self._stream = replacement
        self._remainder.clear()
        return True


def _find_offset(
    stream: IO[bytes], since_us: int, find_time: Callable[[str], Optional[int]]
) -> int:
    """Return the offset of a line before which all lines are older than an instant."""
    offset = stream.seek(0, os.SEEK_END)
    while offset > 0:
        offset = max(offset - _BLOCK_BYTES, 0)
        stream.seek(offset)
        skipped = len(stream.readline()) if offset else 0
        while True:
            line = stream.readline()
            if not line.endswith(b"\n"):
                break  # no line with a time is left
            instant = find_time(line.decode("utf-8", "replace"))
            if instant is not None:
                if instant < since_us:
                    return offset + skipped
                break
    return 0
