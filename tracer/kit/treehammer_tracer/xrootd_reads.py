"""Reads of the XRootD client by URL, from the recordings of its own recorder plug-in."""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from typing import Dict, Sequence

from ....collectors.record.xrootd_recording import RecordedOperation, parse_recording
from .file_reads import FileReads


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
