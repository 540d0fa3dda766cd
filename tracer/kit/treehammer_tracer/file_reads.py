"""Reads of a command by file: calls, bytes, distinct bytes and order."""

from __future__ import annotations

import glob
import os
import re
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ....collectors.record.xrootd_recording import RecordedOperation, parse_recording
from .recorder import INTERNET, STREAM, ProcessNotes

#: Files that a record lists, those with most bytes first.
MAX_FILES = 200
#: Files of programs rather than data: below folders of the system or of Python packages, or by suffix.
_SOFTWARE = re.compile(
    r"/(usr|lib|lib32|lib64|bin|sbin|etc|proc|sys|dev(?!/shm)|cvmfs)/|.*/(libexec|site-packages|lib/python3[.\d]*)/"
    r"|.*\.(pyc?|pth|cfg|conf|sh|bash|[cC]|cc|cpp|cxx|o|pcm|rootmap|modulemap|hh?|hpp|hxx|icc|so[.\d]*)$"
)
#: Half-open ranges of bytes, sorted and disjoint.
Ranges = List[Tuple[int, int]]


@dataclass
class FileReads:
    """All reads of one file or connection by all processes of a command.

    Attributes:
        path: path, URL that the XRootD client opened, or ``tcp://ADDRESS:PORT`` of a connection.
        is_connection: whether it is a connection, whose bytes have no order of their own.
        sequential: reads that began where the process' last read of the file ended, or at 0.
        skipped_forward: bytes from there to reads that began behind it.
        skipped_backward: bytes from there back to reads that began before it.
        is_complete: whether ``offsets`` holds every read.
        sizes: reads by range of their size, of a tool that counts these where it notes no offsets.
        wanted: blocks that ROOT wanted of its vector reads, with offset and length.
        vector_reads: numbers of these reads.
    """

    path: str
    is_connection: bool
    size: Optional[int] = None
    opens: int = 0
    calls: int = 0
    bytes: int = 0
    read_ns: int = 0
    maps: int = 0
    mapped_bytes: int = 0
    sequential: int = 0
    skipped_forward: int = 0
    skipped_backward: int = 0
    is_complete: bool = True
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: Dict[str, int] = field(default_factory=dict)
    wanted: List[Tuple[int, int]] = field(default_factory=list)
    vector_reads: Set[int] = field(default_factory=set)

    @property
    def is_software(self) -> bool:
        """Whether it belongs to a program, which is no data that a command reads."""
        return not self.path.endswith(".root") and bool(_SOFTWARE.match(self.path))

    def add_read(self, offset: int, length: int, last_end: int) -> int:
        """Add a read of a process, whose last one ended at an offset; return the end of this one."""
        self.sequential += length > 0 and offset == last_end
        return self.add_block(offset, length, last_end)

    def add_block(self, offset: int, length: int, last_end: int) -> int:
        """Add a block of a read, as :meth:`add_read`."""
        self.offsets.append(offset)
        self.lengths.append(length)
        if not length:
            return last_end
        skipped = offset - last_end
        self.skipped_forward += max(0, skipped)
        self.skipped_backward += max(0, -skipped)
        return offset + length

    def add_wanted_block(self, offset: int, length: int) -> None:
        """Add a block that ROOT wanted of the last read."""
        self.wanted.append((offset, length))
        self.vector_reads.add(len(self.offsets) - 1)

    def list_reads(self) -> List[Tuple[int, int]]:
        """List offset and length of each read."""
        return list(zip(self.offsets, self.lengths))  # noqa: B905 - Python 3.9 knows no strict

    @property
    def touched(self) -> Optional[int]:
        """Distinct bytes that were read; None for a connection, or where reads are missing."""
        if self.is_connection or not self.is_complete:
            return None
        return sum(end - start for start, end in merge_ranges(self.list_reads()))

    def to_document(self) -> Dict[str, Any]:
        """Return what a record says of the file; what is not known is left out."""
        document: Dict[str, Any] = {"path": self.path, "opens": self.opens}
        if self.size is not None:
            document["size"] = self.size
        if self.calls:
            document.update(calls=self.calls, bytes=self.bytes, read_s=self.read_ns / 1e9)
        if self.calls and self.touched is not None:
            nonempty = sorted(length for length in self.lengths if length)
            document.update(
                touched=self.touched,
                sequential=self.sequential,
                median=nonempty[len(nonempty) // 2] if nonempty else 0,
            )
        elif self.sizes:
            document.update(sequential=self.sequential, sizes=self.sizes)
        if self.maps:
            document["mapped"] = self.mapped_bytes
        return document


def merge_ranges(reads: List[Tuple[int, int]]) -> Ranges:
    """Merge reads, each with offset and length, to sorted and disjoint ranges."""
    merged: List[List[int]] = []
    for start, length in sorted(reads):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], start + length)
        elif length:
            merged.append([start, start + length])
    return [(start, end) for start, end in merged]


def collect_file_reads(notes: Sequence[ProcessNotes]) -> Dict[str, FileReads]:
    """Collect the reads of all processes by path.

    The notes of a process are in the order in which its reads ended.
    """
    by_path: Dict[str, FileReads] = {}
    for process in notes:
        files = [_add_sums(by_path, process, number) for number in range(len(process.files))]
        ends = [0] * len(files)
        for read in process.iterate_reads():
            file = files[read.file]
            if read.is_wanted_block:
                file.add_wanted_block(read.offset, read.length)
                continue
            ends[read.file] = file.add_read(read.offset, read.length, ends[read.file])
    return by_path


def _add_sums(by_path: Dict[str, FileReads], process: ProcessNotes, number: int) -> FileReads:
    sums = process.files[number]
    if sums.kind == STREAM:
        return FileReads(sums.path, is_connection=True)  # no file
    file = by_path.setdefault(sums.path, FileReads(sums.path, sums.kind == INTERNET))
    if not file.is_connection:
        file.size = max(file.size or 0, sums.size)
    file.opens += sums.opens
    file.calls += sums.calls
    file.bytes += sums.bytes
    file.read_ns += sums.read_ns
    file.maps += sums.maps
    file.mapped_bytes += sums.mapped_bytes
    file.is_complete = file.is_complete and process.is_complete
    return file


def summarize_reads(by_path: Mapping[str, FileReads]) -> Dict[str, Any]:
    """Compute the catalogue values of all data; those that are not known are left out."""
    data = _list_data_files(by_path)
    read = [file for file in data if file.calls]
    return {
        "files_read": len(read),
        "bytes_read": sum(file.bytes for file in read),
        "read_calls": sum(file.calls for file in read),
        "read_wait_s": sum(file.read_ns for file in read) / 1e9,
        "mapped_bytes": sum(file.mapped_bytes for file in data),
        **_sum_distances([file for file in read if not file.is_connection]),
    }


def _list_data_files(by_path: Mapping[str, FileReads]) -> List[FileReads]:
    """List files and connections of data; no connection if it carried what the XRootD client read."""
    data = [file for file in by_path.values() if not file.is_software]
    files = [file for file in data if not file.is_connection]
    return files if any("://" in file.path for file in files) else data


def _sum_distances(files: Sequence[FileReads]) -> Dict[str, int]:
    """Sum what offsets tell; nothing if some reads have none."""
    touched = [file.touched for file in files]
    if not files or None in touched:
        return {}
    return {
        "bytes_touched": sum(size for size in touched if size is not None),
        "read_calls_sequential": sum(file.sequential for file in files),
        "skipped_forward_bytes": sum(file.skipped_forward for file in files),
        "skipped_backward_bytes": sum(file.skipped_backward for file in files),
    }


def add_xrootd_reads(by_path: Dict[str, FileReads], folder: str) -> None:
    """Add the reads of all processes that recorded their XRootD client in a folder."""
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.csv"))):
        with (
            suppress(OSError, ValueError),
            open(path, encoding="utf-8", errors="replace", newline="") as lines,
        ):
            _add_operations(by_path, parse_recording(lines))


def _add_operations(by_path: Dict[str, FileReads], operations: Sequence[RecordedOperation]) -> None:
    handles: Dict[int, FileReads] = {}
    ends: Dict[str, int] = {}
    for operation in operations:
        if operation.name == "open":
            url = operation.url.partition("?")[0]
            handles[operation.handle] = by_path.setdefault(url, FileReads(url, False))
            handles[operation.handle].opens += operation.succeeded
        file = handles.get(operation.handle)
        if file is None or not operation.succeeded:
            continue
        if operation.name == "stat":
            file.size = int(operation.response.partition(";")[0] or 0)
        elif operation.name in ("read", "vector_read"):
            _add_read(file, operation, ends)


def _add_read(file: FileReads, operation: RecordedOperation, ends: Dict[str, int]) -> None:
    file.calls += 1
    file.bytes += operation.bytes
    file.read_ns += round(1e9 * (operation.end_s - operation.start_s))
    file.sequential += operation.chunks[0][0] == ends.get(file.path, 0)
    for offset, length in operation.chunks:
        ends[file.path] = file.add_block(offset, length, ends.get(file.path, 0))
