"""Loads of the shipped tests: operations of a task."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Iterator, NamedTuple, Union

from ...record.operation_steps import CREATE, DELETE, VANISH, WRITE_FILE
from ..treehammer_kit.payload_task import PayloadError
from . import schedule
from .closed_loop import ClosedLoop
from .load_task import LoadTask
from .operation import LoadFile, Operation
from .written_files import WrittenFiles

if TYPE_CHECKING:
    from .replay import Replay

#: Opens per second before the first step of readers, and seconds for them at most.
OPENING_RATE_HZ, MAX_OPENING_S = 100.0, 10.0
#: Pieces of one vector read, and kB of one piece, over every protocol.
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
    instants = schedule.pace_at_rate(rate, span.start_s, span.end_s, task.index, task.jobs)
    return schedule.schedule_opens(instants, clients, task.files, task.seed)


def read_files(task: LoadTask, span: LoadSpan) -> Iterator[Operation]:
    """Read ``block_kb`` every ``period_s`` by each of ``clients`` clients in a ``pattern``."""
    clients = task.read_clients()
    period = task.read_number("period_s", 10.0, (0, 86_400))
    block = round(1e3 * task.read_number("block_kb", 2500, (0, 1_000_000)))
    pattern = task.read_choice("pattern", schedule.PATTERNS)
    vector = task.read_count("vector", 64, MAX_VECTOR) if pattern == schedule.VECTOR else 1
    task.check_count(clients / period)
    _check_size(task, block, vector, block)
    instants = schedule.pace_clients(clients, period, span.start_s, span.end_s, task.seed)
    chooser = schedule.make_chunk_chooser(pattern, block, vector)
    opening = max(span.now_s, span.start_s - find_opening_time(clients)), span.start_s
    return schedule.schedule_reads(instants, clients, task.files, task.seed, chooser, opening)


def find_opening_time(clients: int) -> float:
    """Return the seconds before the load in which readers open their files."""
    return min(clients / OPENING_RATE_HZ, MAX_OPENING_S)


def _check_size(task: LoadTask, block: int, vector: int, max_bytes: int) -> None:
    """Refuse blocks with more pieces than bytes, or more bytes than the smallest file."""
    small = min((file.size for file in task.files), default=0)
    if not vector <= block <= max_bytes <= small:
        raise _make_load_error(
            f"blocks of {max_bytes} bytes in {vector} pieces cannot be read from a file of {small} bytes; "
            "use another dataset, or smaller blocks"
        )


def _make_load_error(message: str) -> PayloadError:
    return PayloadError("payload", "bad-load", "setup", message)


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
    return ClosedLoop(
        [
            schedule.sequence_reads(
                client, task.files[client % len(task.files)], reads, lengths, vector, task.seed
            )
            for client in range(clients)
        ]
    )


def delete_files(task: LoadTask, span: LoadSpan) -> Union[Iterator[Operation], ClosedLoop]:
    """Delete the files of :func:`create_files`: at ``rate_hz`` by each client, or flat out for 0.

    With ``poll_s``, each deletion is followed by stats until the file is really gone.
    """
    written, clients = task.require_written(), task.read_clients()
    then = VANISH if task.read_poll_s() else ""

    def delete(number: int, due_s: float) -> Operation:
        file = _name_deleted(written, number)
        return Operation(due_s, DELETE, number % clients, file, then=then)

    rate = _read_deletion_rate(task, clients)
    if rate:
        instants = schedule.pace_at_rate(rate, span.start_s, span.end_s, task.index, task.jobs)
        return (delete(number, due_s) for number, due_s in enumerate(instants))
    count = _count_deleted(task, clients)
    return ClosedLoop(
        [_delete_every(delete, range(client, count, clients)) for client in range(clients)]
    )


def _delete_every(delete: Callable[[int, float], Operation], numbers: range) -> Iterator[Operation]:
    return (delete(number, 0.0) for number in numbers)


def create_files(task: LoadTask) -> Iterator[Operation]:
    """Create the files that :func:`delete_files` deletes, of ``size_kb`` each."""
    written, clients = task.require_written(), task.read_clients()
    size = task.read_number("size_kb", 0.0, (0, 1e6), zero=True)
    for number in range(_count_deleted(task, clients)):
        file = _name_deleted(written, number)._replace(size=round(1e3 * size), number=number)
        yield Operation(0.0, WRITE_FILE if file.size else CREATE, 0, file)


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
