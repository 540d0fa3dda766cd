"""Operations of a load, and the interface of the clients that perform them."""

from __future__ import annotations

import errno
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

OPEN, READ, VECTOR_READ = "open", "read", "vector_read"
WRITE, CREATE, STAT, DELETE = "write", "create", "stat", "delete"
MKDIR, RMDIR = "mkdir", "rmdir"

#: Offset and length of one piece of a file.
Chunk = Tuple[int, int]


class LoadFile(NamedTuple):
    """One file or folder that the load may use.

    Attributes:
        url: URL or path.
        size: bytes.
        number: of a file that is written: decides its content.
        adler32: checksum that reading the whole file must give; None if unknown.
    """

    url: str
    size: int = 0
    number: int = 0
    adler32: Optional[int] = None


class Operation(NamedTuple):
    """One operation that is due at an instant.

    Attributes:
        due_s: seconds since step 0 began; negative for what prepares the load.
        name: ``open``, ``read``, ``vector_read``, ``write``, ``create``, ``stat``, ``delete``,
            ``mkdir`` or ``rmdir``.
        client: number of the client that performs it.
        file: the file; a new one for ``write`` and ``create`` (an empty file).
        chunks: pieces to read, one for ``read``; none to open, read and close the whole file.
        keep: for ``open``: keep the file open for the client's reads.
    """

    due_s: float
    name: str
    client: int
    file: LoadFile
    chunks: Sequence[Chunk] = ()
    keep: bool = False

    @property
    def bytes(self) -> int:
        """Bytes that the operation moves."""
        if self.name == WRITE or self.is_whole_read:
            return self.file.size
        return sum(size for _, size in self.chunks)

    @property
    def is_whole_read(self) -> bool:
        """Whether it reads a whole file, with its checksum."""
        return self.name == READ and not self.chunks


class Flight:
    """One operation on its way; the first of its ends counts.

    Attributes:
        operation: the operation.
        sent_s: when it was sent, on the load's clock; None before.
        adler32: checksum of the file that was written.
    """

    __slots__ = ("_clock", "_ended", "_record", "adler32", "operation", "sent_s")

    def __init__(
        self,
        operation: Operation,
        clock: Callable[[], float],
        record: Callable[[Flight, float, str, str], None],
    ) -> None:
        self.operation = operation
        self.sent_s: Optional[float] = None
        self.adler32: Optional[int] = None
        self._clock = clock
        self._record = record
        self._ended = False

    def send(self) -> None:
        """Note that the operation is being sent now."""
        if self.sent_s is None:
            self.sent_s = self._clock()

    def has_lasted(self, seconds: float) -> bool:
        """Whether it was sent longer ago."""
        return self.sent_s is not None and self._clock() > self.sent_s + seconds

    def succeed(self, server: str) -> None:
        """Note that it has succeeded at a server (``host:port``)."""
        self._end(server, "")

    def fail(self, failure: str, server: str = "") -> None:
        """Note that it has failed; ``failure`` is one of the record's classes."""
        self._end(server, failure)

    def _end(self, server: str, failure: str) -> None:
        if not self._ended:
            self._ended = True
            self._record(self, self._clock(), server, failure)


class StorageClient:
    """Client of one protocol.

    :meth:`start` sends an operation and returns at once; the client calls ``send`` when it really
    sends, and later ``succeed`` or ``fail``, from any thread. It never repeats an operation.

    Args:
        clients: number of clients, each with connections of its own.
        timeout_s: an operation that takes longer fails.

    Attributes:
        cores: cores that whole files may occupy; one where all bytes pass one thread.
    """

    cores = 1

    def __init__(self, clients: int, timeout_s: float) -> None:
        self.clients = clients
        self.timeout_s = timeout_s

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open, within a few seconds."""


_FAILURES_BY_ERRNO: Dict[int, str] = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "refused",
    errno.ENETUNREACH: "refused",
    errno.ECONNRESET: "reset",
    errno.ECONNABORTED: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout",
    errno.ENOENT: "not-found",
    errno.EACCES: "not-permitted",
    errno.EPERM: "not-permitted",
    errno.EROFS: "not-permitted",
    errno.ENOSPC: "no-space",
    errno.EDQUOT: "no-space",
    errno.EOPNOTSUPP: "not-supported",
    errno.ENOSYS: "not-supported",
    errno.EIO: "server-error",
    errno.ESTALE: "server-error",
    errno.EREMOTEIO: "server-error",
}


def classify_os_error(error: OSError) -> str:
    """Return the failure class of an error of the operating system."""
    if isinstance(error, TimeoutError):
        return "timeout"
    return _FAILURES_BY_ERRNO.get(error.errno or 0, "other")
