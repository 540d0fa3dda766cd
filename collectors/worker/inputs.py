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
from urllib.parse import unquote, urlsplit

from ..failures import Failure, Fault
from ..job import InputFile
from .stop import Signals

_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True)
class Staged:
    """Files copied to the node, and what that took."""

    files: Tuple[InputFile, ...]
    wall_s: float
    cpu_s: float
    bytes: int


def local_path(url: str) -> Optional[str]:
    """The path of a local file's URL; None when it is not local."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    return unquote(parts.path) if parts.scheme == "file" else None


def common_folder(files: Sequence[InputFile]) -> Optional[str]:
    """The folder that holds all local files, when there are some and it exists."""
    paths = [os.path.abspath(path) for path in (local_path(f.url) for f in files) if path]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return folder if os.path.isdir(folder) else None


def check_sizes(files: Sequence[InputFile], failure_class: str = "open") -> None:
    """Compare local files with what the manifest says.

    Raises:
        Fault: class ``failure_class``, kind ``missing`` or ``size``.
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
        raise Fault(Failure(failure_class, "missing", failure_class, message)) from error
    if size != file.size:
        message = (
            f"{file.url} has {size} bytes, the manifest says {file.size}: it is another file or "
            "incomplete. Make or place the dataset again."
        )
        raise Fault(Failure(failure_class, "size", failure_class, message))


#: Copies what lies at a URL to a file of the node.
Fetch = Callable[[str, str], None]


def stage(files: Sequence[InputFile], folder: str, signals: Signals, fetch: Fetch) -> Staged:
    """Copy files of the right size to ``folder`` and verify the adler32 of what was copied.

    Args:
        files: what to copy.
        folder: where to.
        signals: on which to stop.
        fetch: copies a file that is not local.

    Raises:
        Fault: class ``stage-in``, kind ``unsupported``, ``checksum`` or ``copy``; class ``evicted``.
    """
    start, cpu = time.monotonic(), _own_cpu()
    copied = tuple(_copy(file, folder, index, signals, fetch) for index, file in enumerate(files))
    return Staged(
        files=copied,
        wall_s=time.monotonic() - start,
        cpu_s=_own_cpu() - cpu,
        bytes=sum(file.size for file in files),
    )


def _own_cpu() -> float:
    """CPU seconds of the worker and of what it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def _copy(file: InputFile, folder: str, index: int, signals: Signals, fetch: Fetch) -> InputFile:
    source = local_path(file.url)
    # Two files of a dataset may share their last name; each keeps it, for the payload to see.
    target = os.path.join(folder, str(index), os.path.basename(file.name))
    try:
        os.makedirs(os.path.dirname(target))
        if source is None:
            fetch(file.url, target)
            checksum = _copy_bytes(target, os.devnull, signals)
        else:
            checksum = _copy_bytes(source, target, signals)
    except OSError as error:
        message = f"{file.url} cannot be copied to the node: {error.strerror or error}."
        raise Fault(Failure("stage-in", "copy", "stage-in", message, transient=True)) from error
    if checksum != file.adler32.lower():
        message = (
            f"{file.url} has adler32 {checksum}, the manifest says {file.adler32}: its content "
            "changed. Make or place the dataset again."
        )
        raise Fault(Failure("stage-in", "checksum", "stage-in", message))
    return replace(file, url=target)


def _copy_bytes(source: str, target: str, signals: Signals) -> str:
    """Copy and return the adler32 of what was read, as 8 hex digits."""
    checksum = 1
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while True:
            signals.check("stage-in")
            chunk = reader.read(_CHUNK)
            if not chunk:
                return f"{checksum:08x}"
            checksum = zlib.adler32(chunk, checksum)
            writer.write(chunk)
