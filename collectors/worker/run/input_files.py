"""The files of an execution before the payload sees them: checked, or copied to the node.

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
    """Files copied to the node, and what that took.

    ``wall_s`` and ``cpu_s`` are of copying and verifying; ``loading`` is what was spent on the
    software that copies before it could.
    """

    files: Tuple[InputFile, ...]
    wall_s: float
    cpu_s: float
    bytes: int
    software_loading: TimeSpent


def find_common_folder(files: Sequence[InputFile]) -> Optional[str]:
    """The folder that holds all local files, when there are some and it exists."""
    paths = [os.path.abspath(path) for path in (local_path(f.url) for f in files) if path]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return folder if os.path.isdir(folder) else None


def check_sizes(files: Sequence[InputFile], failure_class: str = "open") -> None:
    """Compare local files with what the manifest says.

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


#: Copies what lies at a URL to a file of the node, and says what it spent before it could.
Fetch = Callable[[str, str], TimeSpent]


def stage_files(
    files: Sequence[InputFile], folder: str, signals: StopSignals, fetch: Fetch
) -> StagedFiles:
    """Copy files to ``folder`` and verify the size and the adler32 of what was copied.

    Args:
        files: what to copy.
        folder: where to.
        signals: on which to stop.
        fetch: copies a file that is not local.

    Raises:
        ExecutionError: class ``stage-in``, kind ``not-supported``, ``size``, ``checksum`` or ``copy``; class
            ``evicted``.
    """
    start, cpu = time.monotonic(), _own_cpu_s()
    copied = [_copy_file(file, folder, index, signals, fetch) for index, file in enumerate(files)]
    wall_s, cpu_s = time.monotonic() - start, _own_cpu_s() - cpu
    loading = TimeSpent(sum(one.wall_s for _, one in copied), sum(one.cpu_s for _, one in copied))
    return StagedFiles(
        files=tuple(file for file, _ in copied),
        wall_s=wall_s - loading.wall_s,
        # The clock of the software that copies may have counted more than the kernel's account.
        cpu_s=max(cpu_s - loading.cpu_s, 0.0),
        bytes=sum(file.size for file in files),
        software_loading=loading,
    )


def _own_cpu_s() -> float:
    """CPU seconds of the worker and of what it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def _copy_file(
    file: InputFile, folder: str, index: int, signals: StopSignals, fetch: Fetch
) -> Tuple[InputFile, TimeSpent]:
    """A file as it lies on the node now, and what was spent before it could be copied."""
    source = local_path(file.url)
    # Two files of a dataset may share their last name; each keeps it, for the payload to see.
    target = os.path.join(folder, str(index), os.path.basename(file.name))
    try:
        os.makedirs(os.path.dirname(target))
        if source is None:
            loading = fetch(file.url, target)
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
    """Copy and return the size and the adler32 of what was read, the latter as 8 hex digits."""
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
