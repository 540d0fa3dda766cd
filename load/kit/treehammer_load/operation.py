"""Operations of a load, the interface of the clients that perform them, and the content of files.

Files that a load writes hold seeded bytes, the same on every node.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from mmap import mmap
from typing import Callable, Dict, FrozenSet, Iterator, NamedTuple, Optional, Sequence, Tuple

from ....collectors.kit.treehammer_kit.payload_task import PayloadError
from ....collectors.record.operation_steps import COPY, CREATE, DELETE, OPEN, READ_FILE, WRITE_FILE


def make_load_error(message: str) -> PayloadError:
    """Make the error of a load that cannot be performed as it is described."""
    return PayloadError("payload", "bad-load", "setup", message)


#: Offset and length of one piece of a file.
Chunk = Tuple[int, int]


#: Operations that count for a ceiling on opens: they open, make or remove a file.
OPENING = frozenset({OPEN, CREATE, DELETE, READ_FILE, WRITE_FILE, COPY})


class CeilingShare(NamedTuple):
    """The most that a generator may ask of a door; 0 for no bound.

    Attributes:
        opens_per_s: operations of :data:`OPENING` per second.
        clients: clients at a time.
        mb_per_s: 10^6 bytes per second.
    """

    opens_per_s: float = 0.0
    clients: int = 0
    mb_per_s: float = 0.0


NO_CEILING = CeilingShare()


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
        due_s: seconds since step 0 began; negative for preparations.
        name: one of the record's ``OPERATIONS``.
        client: number of the client that performs it.
        file: the file; a new one for ``write_file`` and ``create`` (an empty file).
        chunks: pieces to read, one for ``read``.
        keep: for ``open``: keep the file open for the client's reads, until its ``close``.
        puts: for ``copy``: copy a local file to the storage, instead of from it.
        then: operation that follows on the same file as soon as this one has succeeded.
        follows: whether it is such an operation.
        handle: number of the open file of this client that it uses; -1 for its only one.
        held_since_s: when the door's ceiling began to hold it back; None if it did not.
    """

    due_s: float
    name: str
    client: int
    file: LoadFile
    chunks: Sequence[Chunk] = ()
    keep: bool = False
    puts: bool = False
    then: str = ""
    follows: bool = False
    handle: int = -1
    held_since_s: Optional[float] = None

    @property
    def bytes(self) -> int:
        """Bytes that the operation moves."""
        if self.name in (READ_FILE, WRITE_FILE, COPY):
            return self.file.size
        return sum(size for _, size in self.chunks)


class Flight:
    """One operation on its way; the first of its ends counts.

    Attributes:
        operation: the operation.
        sent_s: when it was sent, on the load's clock; None before.
        done_s: when it was done, if it is checked afterwards; None for its end.
        released_s: when it was sent on, after it had waited for another operation on its file; None
            if it did not wait.
        adler32: checksum of the file that was written.
    """

    __slots__ = (
        "_clock",
        "_ended",
        "_record",
        "adler32",
        "done_s",
        "operation",
        "released_s",
        "sent_s",
    )

    def __init__(
        self,
        operation: Operation,
        clock: Callable[[], float],
        record: Callable[[Flight, float, str, str], None],
    ) -> None:
        self.operation = operation
        self.sent_s: Optional[float] = None
        self.done_s: Optional[float] = None
        self.released_s: Optional[float] = None
        self.adler32: Optional[int] = None
        self._clock = clock
        self._record = record
        self._ended = False

    def send(self) -> None:
        """Note that the operation is being sent now."""
        if self.sent_s is None:
            self.sent_s = self._clock()

    def release(self) -> None:
        """Note that the operation need no longer wait for another one."""
        self.released_s = self._clock()

    def stop_clock(self) -> None:
        """Note that the operation is done now; later checks of the client do not count."""
        self.done_s = self._clock()

    def has_lasted(self, seconds: float) -> bool:
        """Return whether it was sent more than ``seconds`` ago."""
        return self.sent_s is not None and self._clock() > self.sent_s + seconds

    def fail(self, failure: str, server: str = "") -> None:
        """Note that it has failed; ``failure`` is one of the record's classes."""
        self.end(server, failure)

    def end(self, server: str, failure: str) -> None:
        """Note that it has ended at a server (``host:port``); ``failure`` is '' for success."""
        if not self._ended:
            self._ended = True
            now_s = self._clock() if self.done_s is None else self.done_s
            self._record(self, now_s, server, failure)


class StorageClient:
    """Client of one protocol.

    :meth:`start` sends an operation and returns at once; the client calls ``send`` when it really
    sends, and later ``end`` or ``fail``, from any thread. It never repeats an operation.

    Args:
        clients: number of clients, each with connections of its own.
        timeout_s: an operation that takes longer fails.

    Attributes:
        cores: cores that whole files may occupy; one where all bytes pass one thread.
        unsupported: operations that the protocol does not have.
    """

    cores = 1
    unsupported: FrozenSet[str] = frozenset()

    def __init__(self, clients: int, timeout_s: float) -> None:
        self.clients = clients
        self.timeout_s = timeout_s

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        raise NotImplementedError

    def has_copy(self, url: str) -> bool:
        """Return whether a redirector still finds a removed path at another server."""
        return False

    def child_cpu_s(self) -> float:
        """Return the CPU seconds that programs of this client have used."""
        return 0.0

    def summarize(self) -> Dict[str, float]:
        """Return figures that only the client knows."""
        return {}

    def abort(self) -> None:
        """End programs that are still running; their operations have failed already."""

    def close(self) -> None:
        """Close connections and files, within a few seconds."""


class ThreadedClient(StorageClient):
    """Client that performs each operation in a thread, by default one for each client."""

    def __init__(self, clients: int, timeout_s: float, threads: int = 0) -> None:
        super().__init__(clients, timeout_s)
        self._pool = ThreadPoolExecutor(threads or clients)

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        self._pool.submit(self._perform, flight)

    def close(self) -> None:
        """End the threads; those that hang end with the process."""
        self._pool.shutdown(wait=False)

    def _perform(self, flight: Flight) -> None:
        raise NotImplementedError


class ThreadBuffer(threading.local):
    """Buffer of each thread, which lies on a page's boundary as O_DIRECT requires."""

    def __init__(self, size: int) -> None:
        self.buffer = mmap(-1, size)


class WrappingClient(StorageClient):
    """Client that performs some operations itself, and leaves the others to another client.

    Args:
        inner: the other client.
    """

    def __init__(self, inner: StorageClient) -> None:
        super().__init__(inner.clients, inner.timeout_s)
        self.inner = inner
        self.cores, self.unsupported = inner.cores, inner.unsupported

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        self.inner.start(flight)

    def has_copy(self, url: str) -> bool:
        """Return whether a redirector still finds a removed path at another server."""
        return self.inner.has_copy(url)

    def child_cpu_s(self) -> float:
        """Return the CPU seconds that programs of this client have used."""
        return self.inner.child_cpu_s()

    def summarize(self) -> Dict[str, float]:
        """Return figures that only the client knows."""
        return self.inner.summarize()

    def abort(self) -> None:
        """End programs that are still running."""
        self.inner.abort()

    def close(self) -> None:
        """Close connections and files."""
        self.inner.close()


_FAILURES_BY_ERRNO: Dict[int, str] = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "refused",
    errno.ENETUNREACH: "refused",
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
    if isinstance(error, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
        return "reset"  # without a number if the server just closes the connection
    if (error.errno or 0) < 0:  # of getaddrinfo: the host has no address
        return "refused"
    return _FAILURES_BY_ERRNO.get(error.errno or 0, "other")


#: Bytes of a block, and blocks after which the content repeats.
BLOCK, BLOCKS = 1 << 22, 8


@lru_cache(maxsize=1)
def make_blocks() -> Sequence[bytes]:
    """Make the blocks of all files once; takes a tenth of a second."""
    return [hashlib.shake_128(b"treehammer %d" % number).digest(BLOCK) for number in range(BLOCKS)]


def iterate_blocks(number: int, size: int) -> Iterator[bytes]:
    """Iterate over the content of a file: its number decides which block is the first."""
    blocks = make_blocks()
    while size > 0:
        block = blocks[number % BLOCKS]
        yield block if size >= BLOCK else block[:size]
        number, size = number + 1, size - BLOCK
