"""Recordings of the XRootD client: the CSV file of its recorder plug-in.

A recording holds the operations on open files that one process performed, with their times. It has
no requests outside files, such as listing a folder, and none that never ended. Standard library
only, Python 3.9 and later: this module is packed into the worker and the kit.
"""

from __future__ import annotations

import csv
from collections import Counter
from itertools import chain
from typing import (
    Any,
    Container,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

#: Files of a recording: the plug-in's own, which xrdreplay reads, too, and its figures.
RECORDING_NAME, FIGURES_NAME = "recording.csv", "recording.json"
#: Action of the plug-in -> operation.
OPERATION_BY_ACTION: Mapping[str, str] = {
    "Open": "open",
    "Close": "close",
    "Stat": "stat",
    "Read": "read",
    "PgRead": "read",
    "VectorRead": "vector_read",
    "Write": "write",
    "PgWrite": "write",
    "VectorWrite": "vector_write",
    "Sync": "sync",
    "Truncate": "truncate",
    "Fcntl": "fcntl",
}

_READS, _WRITES = ("read", "vector_read"), ("write", "vector_write")
_SUCCESS = "[SUCCESS]"
_COLUMNS = 6
#: Offsets, sizes and times are below it; NaN is not.
_MAX_NUMBER = 1 << 63
#: Characters of the longest cell: a vector read of thousands of pieces.
_MAX_CELL = 1 << 24


class RecordingError(ValueError):
    """The file is not a recording."""


class RecordedOperation(NamedTuple):
    """One operation of a recording.

    Attributes:
        start_s: when it was sent, seconds since 1970 UTC.
        end_s: when it ended.
        name: ``open``, ``read``, ``vector_read``, …
        handle: number of the open file, from 0 in the order of opens; -1 if it was never opened.
        arguments: as the plug-in writes them, separated by ``;``.
        succeeded: whether it did.
        response: as the plug-in writes it.
    """

    start_s: float
    end_s: float
    name: str
    handle: int
    arguments: str
    succeeded: bool
    response: str

    @property
    def url(self) -> str:
        """URL of an ``open``, without the user name."""
        # A URL may hold ';' itself; flags, mode and time limit follow it.
        scheme, separator, address = self.arguments.rsplit(";", 3)[0].partition("://")
        host, slash, path = address.partition("/")
        return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"

    @property
    def writes(self) -> bool:
        """Whether an ``open`` may change the file."""
        flags = int(self.arguments.rsplit(";", 3)[1])
        return bool(flags & _WRITING_FLAGS)

    @property
    def chunks(self) -> Sequence[Tuple[int, int]]:
        """Offsets and lengths of the bytes that a ``read`` or ``vector_read`` returned."""
        numbers = [int(text) for text in self.arguments.split(";")[:-1]]
        chunks = [(numbers[n], numbers[n + 1]) for n in range(0, len(numbers), 2)]
        # A read past the end of the file returns less than requested.
        return [(chunks[0][0], self.bytes)] if self.name == "read" else chunks

    @property
    def bytes(self) -> int:
        """Bytes that it moved."""
        if not self.succeeded:
            return 0
        if self.name in _READS:
            return int(self.response.partition(";")[0] or 0)
        if self.name in _WRITES:
            return sum(int(text) for text in self.arguments.split(";")[1:-1:2])
        return 0


#: Delete, New, Update, Write and Append of ``XrdCl::OpenFlags``.
_WRITING_FLAGS = 0x0002 | 0x0008 | 0x0020 | 0x8000 | 0x0200


def parse_recording(lines: Iterable[str]) -> List[RecordedOperation]:
    """Parse a recording, and put its operations in the order of their starts.

    The last line may be incomplete, as a process that was killed leaves it.

    Raises:
        RecordingError: not a recording, or one without operations.
    """
    csv.field_size_limit(_MAX_CELL)
    reader = csv.reader(lines)
    rows: List[Tuple[RecordedOperation, str]] = []
    broken = 0
    try:
        for cells in reader:
            if broken:
                raise RecordingError(f"line {broken} is not a row of the XRootD client's recorder")
            operation = _parse_row(cells)
            if operation is None:
                broken = reader.line_num
            else:
                rows.append((operation, cells[0]))
    except csv.Error as error:
        raise RecordingError(f"line {reader.line_num}: {error}") from error
    if not rows:
        raise RecordingError("it holds no operation of the XRootD client's recorder")
    return list(_number_handles(sorted(rows)))


def _parse_row(cells: List[str]) -> Optional[RecordedOperation]:
    """Parse a row, without the number of its file; None if a cell cannot be the plug-in's."""
    try:
        start_s, end_s, name = float(cells[2]), float(cells[4]), OPERATION_BY_ACTION[cells[1]]
        succeeded, response = cells[5].strip() == _SUCCESS, "".join(cells[_COLUMNS : _COLUMNS + 1])
        operation = RecordedOperation(start_s, end_s, name, -1, cells[3], succeeded, response)
        numbers = [start_s, end_s, operation.bytes, operation.writes if name == "open" else 0]
        if name in _READS:
            numbers += chain.from_iterable(operation.chunks)
    except (ValueError, KeyError, IndexError):
        return None
    return operation if all(0 <= number <= _MAX_NUMBER for number in numbers) else None


def _number_handles(rows: Iterable[Tuple[RecordedOperation, str]]) -> Iterator[RecordedOperation]:
    """Number the open files: the plug-in names them by an address, which is used again."""
    handles: Dict[str, int] = {}
    opened = 0
    for operation, address in rows:
        if operation.name == "open":
            handles[address] = opened
            opened += 1
        yield operation._replace(handle=handles.get(address, -1))


class RecordingFigures(NamedTuple):
    """Figures of a recording.

    The I/O phase lasts from the first operation to the end of the last one that is not a close,
    since programs compute with open files. The phases before and after it are known if the
    process's start and end are.

    Attributes:
        operations: operations by name.
        failed: operations of these that failed.
        bytes_read: bytes read.
        bytes_written: bytes written.
        urls: files, in the order of their first opens.
        started_us: start of the first operation, microseconds since 1970 UTC.
        duration_s: from there to the end of the last operation.
        waiting_s: part of the I/O phase in which at least one operation was on its way.
        initialise_s: from the start of the process to the first operation.
        io_s: length of the I/O phase.
        compute_s: from its end to the end of the process.
    """

    operations: Mapping[str, int]
    failed: int
    bytes_read: int
    bytes_written: int
    urls: Sequence[str]
    started_us: int
    duration_s: float
    waiting_s: float
    initialise_s: Optional[float]
    io_s: float
    compute_s: Optional[float]

    @classmethod
    def measure(
        cls, operations: Sequence[RecordedOperation], process: Mapping[str, Any]
    ) -> RecordingFigures:
        """Measure a recording.

        Args:
            operations: from :func:`parse_recording`.
            process: ``started_us`` and ``ended_us`` of the recorded process; empty if unknown.
        """
        io = [operation for operation in operations if operation.name != "close"] or operations
        start_s = operations[0].start_s
        end_s, io_end_s = _find_end(operations), _find_end(io)
        began_us, ended_us = process.get("started_us"), process.get("ended_us")
        return cls(
            operations=dict(sorted(Counter(operation.name for operation in operations).items())),
            failed=sum(not operation.succeeded for operation in operations),
            bytes_read=_sum_bytes(operations, _READS),
            bytes_written=_sum_bytes(operations, _WRITES),
            urls=list(
                dict.fromkeys(operation.url for operation in operations if operation.name == "open")
            ),
            started_us=round(start_s * 1e6),
            duration_s=_round(end_s - start_s),
            waiting_s=_round(_measure_waiting(io)),
            initialise_s=None if began_us is None else _round(start_s - began_us / 1e6),
            io_s=_round(io_end_s - start_s),
            compute_s=None if ended_us is None else _round(ended_us / 1e6 - io_end_s),
        )


def _find_end(operations: Iterable[RecordedOperation]) -> float:
    return max(operation.end_s for operation in operations)


def _sum_bytes(operations: Iterable[RecordedOperation], names: Container[str]) -> int:
    return sum(operation.bytes for operation in operations if operation.name in names)


def _round(seconds: float) -> float:
    """Round to microseconds, as the recorder's clock has no more; no time is negative."""
    return round(max(seconds, 0.0), 6)


def _measure_waiting(operations: Iterable[RecordedOperation]) -> float:
    """Measure the time that is covered by operations in the order of their starts."""
    total, covered_s = 0.0, 0.0
    for operation in operations:
        total += max(operation.end_s - max(operation.start_s, covered_s), 0.0)
        covered_s = max(covered_s, operation.end_s)
    return total
