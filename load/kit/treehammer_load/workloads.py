"""Workloads of the shipped tests: reads, opens, deletions, whole files, namespace calls.

Reads and opens follow schedules whose instants are fixed in advance, or sequences without any.
Whole files follow one after the other in each client: streams, copies, one file for many clients.
Namespace calls are those of a transfer without data, each timed by itself.
"""

from __future__ import annotations

import math
import threading
import time
from itertools import cycle, islice, repeat
from queue import SimpleQueue
from typing import (
    TYPE_CHECKING,
    Callable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from ....collectors.record import operation_steps as steps
from .load_driver import ClosedLoop
from .load_task import GENERATOR, LoadTask
from .operation import (
    Flight,
    LoadFile,
    Operation,
    StorageClient,
    WrappingClient,
    make_blocks,
    make_load_error,
)
from .schedules import (
    PATTERNS,
    VECTOR,
    make_chunk_chooser,
    pace_at_rate,
    pace_clients,
    schedule_opens,
    schedule_reads,
    sequence_reads,
)
from .written_files import WrittenFiles

if TYPE_CHECKING:
    from .replay import Replay


#: Opens per second before the first step of readers, and seconds for them at most.
OPENING_RATE_HZ, MAX_OPENING_S = 100.0, 10.0
#: Pieces of one vector read, and kB of one piece, over every protocol: XrdHttp fails from 1000 ranges.
MAX_VECTOR, MAX_PIECE_KB = 200, 2_000
#: Reads, or files, of one client at most.
MAX_SEQUENCE = 1_000_000


class LoadSpan(NamedTuple):
    """Present instant, start and end of this job's load, in seconds since step 0 began."""

    now_s: float
    start_s: float
    end_s: float


#: Makes the operations of a task: in the order of their instants, or for closed loops.
MakeOperations = Callable[[LoadTask, LoadSpan], Union[Iterator[Operation], ClosedLoop, "Replay"]]
#: Makes the operations that come before the load and are not recorded.
MakePreparation = Callable[[LoadTask], Iterator[Operation]]


def open_files(task: LoadTask, span: LoadSpan) -> Iterator[Operation]:
    """Open files of the dataset: ``clients`` clients, ``rate_hz`` opens per second by each."""
    clients = task.read_clients()
    rate = clients * task.read_number("rate_hz", 2.0, (0, 100_000))
    task.check_count(rate)
    instants = pace_at_rate(rate, span.start_s, span.end_s, task.index, task.jobs)
    return schedule_opens(instants, clients, task.files, task.seed)


def read_files(task: LoadTask, span: LoadSpan) -> Iterator[Operation]:
    """Read ``block_kb`` every ``period_s`` by each of ``clients`` clients in a ``pattern``."""
    clients = task.read_clients()
    period = task.read_number("period_s", 10.0, (0, 86_400))
    block = round(1e3 * task.read_number("block_kb", 2500, (0, 1_000_000)))
    pattern = task.read_choice("pattern", PATTERNS)
    vector = task.read_count("vector", 64, MAX_VECTOR) if pattern == VECTOR else 1
    task.check_count(clients / period)
    _check_size(task, block, vector, block)
    instants = pace_clients(clients, period, span.start_s, span.end_s, task.seed)
    chooser = make_chunk_chooser(pattern, block, vector)
    opening = max(span.now_s, span.start_s - find_opening_time(clients)), span.start_s
    return schedule_reads(instants, clients, task.files, task.seed, chooser, opening)


def find_opening_time(clients: int) -> float:
    """Return the seconds before the load in which readers open their files."""
    return min(clients / OPENING_RATE_HZ, MAX_OPENING_S)


def _check_size(task: LoadTask, block: int, vector: int, max_bytes: int) -> None:
    """Refuse blocks with more pieces than bytes, or more bytes than the smallest file."""
    small = min((file.size for file in task.files), default=0)
    if not vector <= block <= max_bytes <= small:
        raise make_load_error(
            f"blocks of {max_bytes} bytes in {vector} pieces cannot be read from a file of {small} bytes; "
            "use another dataset, or smaller blocks"
        )


def read_pattern(task: LoadTask, _span: LoadSpan) -> ClosedLoop:
    """Read ``reads`` times at random positions: ``vector`` pieces of ``chunk_kb`` each, e.g. 10-20.

    The next read of a client follows the end of its last.
    """
    clients = task.read_clients()
    reads = task.read_count("reads", 500, MAX_SEQUENCE)
    vector = task.read_count("vector", 1, MAX_VECTOR)
    low, high = task.read_range("chunk_kb", "10-20", (0, MAX_PIECE_KB))
    lengths = round(1e3 * low), round(1e3 * high)
    _check_size(task, vector * lengths[0], vector, vector * lengths[1])
    files = enumerate(islice(cycle(task.files), clients))
    return ClosedLoop(
        [sequence_reads(n, file, reads, lengths, vector, task.seed) for n, file in files]
    )


def delete_files(task: LoadTask, span: LoadSpan) -> Union[Iterator[Operation], ClosedLoop]:
    """Delete the files of :func:`create_files`: at ``rate_hz`` by each client, or flat out for 0.

    With ``poll_s``, each deletion is followed by stats until the file is really gone.
    """
    written, clients = task.require_written(), task.read_clients()
    then = steps.VANISH if task.read_poll_s() else ""

    def delete(number: int, due_s: float) -> Operation:
        file = _name_deleted(written, number)
        return Operation(due_s, steps.DELETE, number % clients, file, then=then)

    rate = _read_deletion_rate(task, clients)
    if rate:
        instants = pace_at_rate(rate, span.start_s, span.end_s, task.index, task.jobs)
        return (delete(number, due_s) for number, due_s in enumerate(instants))
    count = _count_deleted(task, clients)
    numbers = (range(client, count, clients) for client in range(clients))
    return ClosedLoop([map(delete, file_numbers, repeat(0.0)) for file_numbers in numbers])


def create_files(task: LoadTask) -> Iterator[Operation]:
    """Create the files that :func:`delete_files` deletes, of ``size_kb`` each."""
    written, clients = task.require_written(), task.read_clients()
    size = task.read_number("size_kb", 0.0, (0, 1e6), zero=True)
    for number in range(_count_deleted(task, clients)):
        file = _name_deleted(written, number)._replace(size=round(1e3 * size), number=number)
        yield Operation(0.0, steps.WRITE_FILE if file.size else steps.CREATE, 0, file)


def _name_deleted(written: WrittenFiles, number: int) -> LoadFile:
    return written.name_file(f"d{number}", 0, 0)


def _read_deletion_rate(task: LoadTask, clients: int) -> float:
    """Return the deletions per second of all clients; 0 for flat out."""
    rate = clients * task.read_number("rate_hz", 0.0, (0, 100_000), zero=True)
    task.check_count(rate)
    return rate


def _count_deleted(task: LoadTask, clients: int) -> int:
    rate = _read_deletion_rate(task, clients)
    if rate:
        return math.ceil(rate * task.duration_s) + 1
    return clients * task.read_count("files", 100, MAX_SEQUENCE)


class VanishPoller(WrappingClient):
    """Performs ``vanish``: a stat at once, and further ones every ``poll_s``.

    Args:
        inner: client for the stats.
        poll_s: seconds between the answer to a stat and the next one.
    """

    def __init__(self, inner: StorageClient, poll_s: float) -> None:
        super().__init__(inner)
        self._poll_s = poll_s
        self._polls: SimpleQueue[Optional[Tuple[float, Flight]]] = SimpleQueue()
        threading.Thread(target=self._repeat, daemon=True).start()

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        if flight.operation.name == steps.VANISH:
            flight.send()
            self._ask(flight)
        else:
            self.inner.start(flight)

    def close(self) -> None:
        """End the polling and close the inner client."""
        self._polls.put(None)
        self.inner.close()

    def _ask(self, flight: Flight) -> None:
        def answered(_stat: Flight, _now_s: float, server: str, failure: str) -> None:
            if failure:
                flight.end(server, "" if failure == "not-found" else failure)
            elif flight.has_lasted(self.timeout_s):
                flight.fail("timeout", server)
            else:
                self._polls.put((time.monotonic() + self._poll_s, flight))

        self.inner.start(
            Flight(flight.operation._replace(name=steps.STAT), time.monotonic, answered)
        )

    def _repeat(self) -> None:
        while True:
            poll = self._polls.get()
            if poll is None:
                return
            due_s, flight = poll
            time.sleep(max(due_s - time.monotonic(), 0.0))
            self._ask(flight)


WRITE_STREAM, READ_STREAM = "write", "read"
#: Assignment of files to clients: each client reads its own, or all read the same one.
OWN, ONE = "own", "one"
#: Folders of the files that are written: one, or one for each client.
MANY = "many"


def stream_files(task: LoadTask, _span: LoadSpan) -> ClosedLoop:
    """Move whole files in a ``direction``: ``files`` of ``size_mb`` by each of ``clients``.

    Readers take the dataset's files, else those of :func:`write_streams`; with ``source = "one"``
    all take the same file. ``client`` names a copy program instead of the generator, which requests
    blocks of ``block_kib``. With
    ``connect`` the connection of each client is an operation of its own, before its first file.
    """
    streams = _Streams.read(task)
    connects = task.connects and task.client == GENERATOR

    def sequence(client: int) -> Iterator[Operation]:
        if connects:
            yield Operation(0.0, steps.CONNECT, client, LoadFile(task.url))
        yield from streams.move(client)

    return ClosedLoop([sequence(client) for client in range(streams.clients)], moves_files=True)


def write_streams(task: LoadTask) -> Iterator[Operation]:
    """Make the folders of :func:`stream_files`, and write the files that it reads."""
    streams = _Streams.read(task)
    if streams.written is None or (streams.reads and task.files):
        return
    if streams.folders == MANY:
        for client in range(streams.clients):
            yield Operation(0.0, steps.MKDIR, 0, LoadFile(f"{streams.written.folder}/c{client}"))
    if streams.reads:
        for file in streams.list_sources():
            yield Operation(0.0, steps.WRITE_FILE, 0, file)


class _Streams(NamedTuple):
    """Clients that move whole files."""

    reads: bool
    program: bool
    clients: int
    files: int
    size: int
    source: str
    folders: str
    written: Optional[WrittenFiles]
    dataset: Sequence[LoadFile]
    first: int

    @classmethod
    def read(cls, task: LoadTask) -> _Streams:
        clients = task.read_clients()
        reads = task.read_direction() == READ_STREAM
        if not (reads and task.files):
            make_blocks()  # not while the load runs
        return cls(
            reads,
            task.client != GENERATOR,
            clients,
            task.read_count("files", 4, MAX_SEQUENCE),
            task.read_size(),
            task.read_choice("source", (OWN, ONE)),
            task.read_choice("folders", (ONE, MANY)),
            task.written if reads and task.files else task.require_written(),
            task.files,
            task.index * clients,
        )

    def move(self, client: int) -> Iterator[Operation]:
        """Iterate over the operations of a client."""
        name = steps.COPY if self.program else steps.READ_FILE if self.reads else steps.WRITE_FILE
        puts = self.program and not self.reads
        for number in range(self.files):
            yield Operation(0.0, name, client, self._choose_file(client, number), puts=puts)

    def list_sources(self) -> List[LoadFile]:
        """List the files that are read and must be written before."""
        if self.source == ONE:
            return [self._choose_file(0, 0)]
        return [self._choose_file(c, n) for c in range(self.clients) for n in range(self.files)]

    def _choose_file(self, client: int, number: int) -> LoadFile:
        if self.reads and self.source == ONE:
            client = number = 0
        if self.reads and self.dataset:
            # Jobs that load together read the same one file, but different own ones.
            first = 0 if self.source == ONE else self.first
            return self.dataset[((first + client) * self.files + number) % len(self.dataset)]
        assert self.written is not None
        name = f"c{client}/{number}" if self.folders == MANY else f"{client}-{number}"
        return self.written.name_file(name, self.size, client + number)


#: Calls of one transfer to its folder, then to its file.
_CALLS = (
    steps.MKDIR,
    steps.CREATE,
    steps.STAT,
    steps.LOCATE,
    steps.OPEN,
    steps.CLOSE,
    steps.DELETE,
    steps.RMDIR,
)


def pretend_transfers(task: LoadTask, _span: LoadSpan) -> ClosedLoop:
    """Perform ``transfers`` without data by each of ``clients``, after its connection.

    A transfer makes a folder and an empty file beside each other, looks for the file, opens and
    closes it, and removes both. All do so in one folder, or each client in its own (``folders``).
    """
    clients = task.read_clients()
    transfers = task.read_count("transfers", 10, MAX_SEQUENCE)

    def call(client: int) -> Iterator[Operation]:
        parent = _name_folder(task, client)
        yield Operation(0.0, steps.CONNECT, client, LoadFile(task.url))
        for number in range(transfers):
            folder, file = (LoadFile(f"{parent}/{kind}{client}-{number}") for kind in ("d", "f"))
            for name in _CALLS:
                target = folder if name in (steps.MKDIR, steps.RMDIR) else file
                yield Operation(0.0, name, client, target, keep=name == steps.OPEN)

    return ClosedLoop([*map(call, range(clients))], calls=(steps.CONNECT, *_CALLS))


def make_own_folders(task: LoadTask) -> Iterator[Operation]:
    """Make the folders of :func:`pretend_transfers`, for ``folders = "many"``."""
    for client in range(task.read_clients()):
        folder = _name_folder(task, client)
        if folder != task.require_written().folder:
            yield Operation(0.0, steps.MKDIR, 0, LoadFile(folder))


def _name_folder(task: LoadTask, client: int) -> str:
    folder = task.require_written().folder
    return f"{folder}/c{client}" if task.read_choice("folders", (ONE, MANY)) == MANY else folder
