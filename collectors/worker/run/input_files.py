"""Input files of an execution: size checks, and copies to the node.

A file is *local* when its URL has no scheme or ``file:``.
"""

from __future__ import annotations

import os
import resource
import time
import zlib
from dataclasses import dataclass, replace
from typing import Callable, Optional, Sequence, Tuple

from ...job_spec import InputFile
from ...record.failures import ExecutionError, Failure
from ...shared_files import local_path
from ..stop_signals import StopSignals

_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True)
class TimeSpent:
    """Seconds of wall and CPU time."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class StagedFiles:
    """Files copied to the node, and the time spent.

    ``wall_s`` and ``cpu_s`` cover copying and verifying; ``software_loading`` is the time before that
    for loading the software that copies.
    """

    files: Tuple[InputFile, ...]
    wall_s: float
    cpu_s: float
    bytes: int
    software_loading: TimeSpent


def find_common_folder(files: Sequence[InputFile]) -> Optional[str]:
    """Find the folder that contains all local files; None without local files."""
    paths = [os.path.abspath(path) for path in (local_path(f.url) for f in files) if path]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return folder if os.path.isdir(folder) else None


def check_sizes(files: Sequence[InputFile], failure_class: str = "open") -> None:
    """Compare the sizes of local files with the manifest.

    Raises:
        ExecutionError: class ``failure_class``, kind ``missing`` or ``size``.
    """
    for file in files:
        path = local_path(file.url)
        if path is not None:
            _check_size(file, path, failure_class)


def _check_size(file: InputFile, path: str, failure_class: str) -> None:
    try:
        size = os.stat(path).st_size
    except OSError as error:
        message = f"{file.url} cannot be read: {error.strerror}. Place the dataset at this door."
        raise ExecutionError(Failure(failure_class, "missing", failure_class, message)) from error
    if size != file.size:
        message = (
            f"{file.url} has {size} bytes, the manifest says {file.size}: it is another file or "
            "incomplete. Make or place the dataset again."
        )
        raise ExecutionError(Failure(failure_class, "size", failure_class, message))


#: Copies a remote file to a file on the node; returns the time spent before the copy itself.
Fetch = Callable[[InputFile, str], TimeSpent]


def stage_files(
    files: Sequence[InputFile], folder: str, signals: StopSignals, fetch: Fetch
) -> StagedFiles:
    """Copy files to ``folder`` and verify size and adler32 of the copies.

    Args:
        files: files to copy.
        folder: target folder.
        signals: signals that interrupt the copy.
        fetch: copies a remote file.

    Raises:
        ExecutionError: class ``stage-in``, kind ``not-supported``, ``size``, ``checksum`` or ``copy``; class
            ``evicted``.
    """
    start, cpu = time.monotonic(), _own_cpu_s()
    copied = [_copy_file(file, folder, index, signals, fetch) for index, file in enumerate(files)]
    wall_s, cpu_s = time.monotonic() - start, _own_cpu_s() - cpu
    loading = TimeSpent(
        sum(spent.wall_s for _, spent in copied), sum(spent.cpu_s for _, spent in copied)
    )
    return StagedFiles(
        files=tuple(file for file, _ in copied),
        wall_s=wall_s - loading.wall_s,
        # The copying software's own clock may exceed the kernel's accounting.
        cpu_s=max(cpu_s - loading.cpu_s, 0.0),
        bytes=sum(file.size for file in files),
        software_loading=loading,
    )


def _own_cpu_s() -> float:
    """Return the CPU seconds of the worker and its reaped children."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def _copy_file(
    file: InputFile, folder: str, index: int, signals: StopSignals, fetch: Fetch
) -> Tuple[InputFile, TimeSpent]:
    """Copy one file; return it with its local path, and the time spent before the copy."""
    source = local_path(file.url)
    # Files of a dataset may share their base name, which payloads see; hence a folder for each.
    target = os.path.join(folder, str(index), os.path.basename(file.name))
    try:
        os.makedirs(os.path.dirname(target))
        if source is None:
            loading = fetch(file, target)
            size, checksum = _copy_bytes(target, os.devnull, signals)
        else:
            loading = TimeSpent()
            size, checksum = _copy_bytes(source, target, signals)
    except OSError as error:
        message = f"{file.url} cannot be copied to the node: {error.strerror or error}."
        raise ExecutionError(
            Failure("stage-in", "copy", "stage-in", message, transient=True)
        ) from error
    if size != file.size:
        message = (
            f"{file.url}: {size} bytes came to the node, the manifest says {file.size}: the copy was "
            "cut short, or it is another file."
        )
        raise ExecutionError(Failure("stage-in", "size", "stage-in", message, transient=True))
    if checksum != file.adler32.lower():
        message = (
            f"{file.url} has adler32 {checksum}, the manifest says {file.adler32}: its content "
            "changed. Make or place the dataset again."
        )
        raise ExecutionError(Failure("stage-in", "checksum", "stage-in", message))
    return replace(file, url=target), loading


def _copy_bytes(source: str, target: str, signals: StopSignals) -> Tuple[int, str]:
    """Copy a file; return the size and the adler32 (8 hex digits) of the bytes read."""
    size, checksum = 0, 1
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while True:
            signals.raise_if_stopped("stage-in")
            chunk = reader.read(_CHUNK)
            if not chunk:
                return size, f"{checksum:08x}"
            size += len(chunk)
            checksum = zlib.adler32(chunk, checksum)
            writer.write(chunk)
