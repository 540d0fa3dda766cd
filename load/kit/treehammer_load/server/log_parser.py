"""Server logs: their lines, complete or as they are written, and the calls that these describe.

A call is followed by its identity through all threads.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import IO, Callable, Dict, Iterable, Iterator, NamedTuple, Optional, Tuple

from .log_formats import LineFormat, LineReader, LogError, LogLine


def decode_lines(stream: IO[bytes], pending: bytearray) -> Iterator[str]:
    """Yield complete lines of a file; text behind the last newline is kept in ``pending``."""
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
        end, offset = offset, max(offset - _BLOCK_BYTES, 0)
        stream.seek(offset)
        skipped = len(stream.readline()) if offset else 0
        # Further back than a block where no line of it has a time.
        while stream.tell() < end:
            instant = find_time(stream.readline().decode("utf-8", "replace"))
            if instant is not None:
                if instant < since_us:
                    return offset + skipped
                break
    return 0


#: Calls that may be open at a time; of more, the oldest is given up.
MAX_OPEN_CALLS = 100_000

#: Seconds after which a client that was asked to repeat a call has given it up, unless the server
#: stated a longer wait.
MAX_PAUSE_S = 60

UNFINISHED = "unfinished"
#: Ending of the operations that were answered with a redirect.
REDIRECT_SUFFIX = "_redirect"


class ServerCall(NamedTuple):
    """One call as the server saw it.

    Attributes:
        start_us: its begin, microseconds since 1970 UTC.
        duration_us: time to its answer, or until it was given up.
        operation: operation of the record.
        failure: class of failure; '' after success.
        bytes: bytes that it moved.
        request: its identity.
    """

    start_us: int
    duration_us: int
    operation: str
    failure: str
    bytes: int
    request: str


class _OpenCall:
    """A call that has begun."""

    __slots__ = ("bytes", "name", "pause_s", "paused_us", "size", "start_us")

    def __init__(self, name: str, start_us: int, size: int) -> None:
        self.name, self.start_us, self.size = name, start_us, size
        self.bytes = self.pause_s = 0
        self.paused_us: Optional[int] = None

    def is_repeated_by(self, name: str, now_us: int) -> bool:
        """Return whether a call that begins now repeats this one, as the server asked."""
        if self.paused_us is None or name != self.name:
            return False
        return now_us - self.paused_us <= (self.pause_s + MAX_PAUSE_S) * 1_000_000


class LogParser:
    """Turns lines into calls, in constant memory.

    Attributes:
        reader: reads its lines.
        replaced: calls that another one with their identity followed before their end.
    """

    def __init__(self, form: LineFormat) -> None:
        self._format = form
        self.reader = LineReader(form)
        self._open: OrderedDict[Tuple[str, str], _OpenCall] = OrderedDict()
        self.replaced = 0

    def parse(self, lines: Iterable[str]) -> Iterator[ServerCall]:
        """Yield the calls that end in these lines, and those given up.

        Raises:
            LogError: no line has a time, or a number is none.
        """
        first = ""
        for line in lines:
            first = first or line
            log_line = self.reader.read(line)
            if log_line is not None:
                yield from self._take(log_line)
        if first and not self.reader.has_times:
            raise LogError(
                f"no line begins with the time of this format, such as {first[:60]!r}: name the "
                "server's log, uncompressed, and its format"
            )

    def close(self, now_us: int) -> Iterator[ServerCall]:
        """Yield the calls without an end as unfinished."""
        while self._open:
            yield self._give_up(now_us)

    def _take(self, line: LogLine) -> Iterator[ServerCall]:
        key = line.key
        if line.role == "begin":
            yield from self._begin(key, line)
            return
        call = self._open.get(key)
        if call is None:
            return
        call.bytes += line.read_number("bytes")
        if line.role == "work":
            wait_us = max(line.time_us - call.start_us, 0)
            name = self._format.operations[call.name]
            yield ServerCall(call.start_us, wait_us, f"{name}_wait", "", 0, key[0])
        elif line.role == "pause":
            call.pause_s = line.read_number("seconds")
        elif line.role == "again":
            call.paused_us = line.time_us
        elif line.role == "redirect":
            del self._open[key]
            ended = self._end(key, call, line.time_us, "")
            yield ended._replace(operation=ended.operation + REDIRECT_SUFFIX, bytes=0)
        elif line.role == "end":
            del self._open[key]
            yield self._end(key, call, line.time_us, line.groups.get("code") or "")

    def _begin(self, key: Tuple[str, str], line: LogLine) -> Iterator[ServerCall]:
        name = line.groups["operation"] or ""
        replaced = self._open.pop(key, None)
        if replaced is not None and replaced.is_repeated_by(name, line.time_us):
            replaced.paused_us, replaced.bytes = None, 0
            self._open[key] = replaced
            return
        if replaced is not None:
            # A client may well give up a call that it should repeat.
            self.replaced += replaced.paused_us is None
            yield self._fail(key, replaced, line.time_us)
        if name not in self._format.operations:
            return
        if len(self._open) >= MAX_OPEN_CALLS:
            yield self._give_up(line.time_us)
        self._open[key] = _OpenCall(name, line.time_us, line.read_number("size"))

    def _give_up(self, now_us: int) -> ServerCall:
        key, call = self._open.popitem(last=False)
        return self._fail(key, call, now_us)

    def _fail(self, key: Tuple[str, str], call: _OpenCall, now_us: int) -> ServerCall:
        name = self._format.operations[call.name]
        return ServerCall(
            call.start_us, max(now_us - call.start_us, 0), name, UNFINISHED, 0, "/".join(key)
        )

    def _end(self, key: Tuple[str, str], call: _OpenCall, end_us: int, code: str) -> ServerCall:
        form = self._format
        failure = "" if code in ("", "0") else form.failures.get(code, "other")
        return ServerCall(
            call.start_us,
            # Clocks are sometimes set back.
            max(end_us - call.start_us, 0),
            form.operations[call.name],
            failure,
            0 if failure else self._count_bytes(call),
            "/".join(part for part in key if part),
        )

    def _count_bytes(self, call: _OpenCall) -> int:
        sizes: Dict[str, int] = {
            "answer": call.bytes,
            "size": call.size,
            "difference": max(call.bytes - call.size, 0),
        }
        size = sizes.get(self._format.moved.get(call.name, ""), 0)
        # Each page of XRootD's paged calls brings its checksum.
        return size - 4 * -(-size // 4100) if call.name in ("pgread", "pgwrite") else size
