"""Files of the benchmark: seeded bytes that no storage can compress or deduplicate."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
import zlib
from contextlib import contextmanager
from typing import Iterator, List

from ...kit.treehammer_load.operation import LoadFile
from ...shared_files import local_path
from .benchmark_set import CLIENTS

_BLOCK = 1 << 22


class BenchmarkError(Exception):
    """The benchmark cannot run; the message names the storage and the remedy."""


def name_files(folder: str, size_mb: int) -> List[LoadFile]:
    """Name the files below a folder or URL."""
    base = folder.rstrip("/")
    return [
        LoadFile(f"{base}/treehammer-bench-{size_mb}-{number}", size_mb * 1_000_000, number)
        for number in range(CLIENTS)
    ]


def iterate_content(file: LoadFile) -> Iterator[bytes]:
    """Iterate over the content of a file, of which no block repeats."""
    for block in range(-(-file.size // _BLOCK)):
        seed = b"treehammer bench %d %d" % (file.number, block)
        yield hashlib.shake_128(seed).digest(min(_BLOCK, file.size - block * _BLOCK))


def add_checksum(file: LoadFile) -> LoadFile:
    """Add the checksum that reading the whole file must give."""
    adler32 = 1
    for block in iterate_content(file):
        adler32 = zlib.adler32(block, adler32)
    return file._replace(adler32=adler32)


def write_files(folder: str, size_mb: int) -> List[LoadFile]:
    """Write all files to an existing folder, and to its device.

    Raises:
        OSError: they cannot be written.
    """
    return [_write_file(file) for file in name_files(folder, size_mb)]


def _write_file(file: LoadFile) -> LoadFile:
    adler32 = 1
    with open(file.url, "wb") as stream:
        for block in iterate_content(file):
            adler32 = zlib.adler32(block, adler32)
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    return file._replace(adler32=adler32)


@contextmanager
def provide_files(storage: str, size_mb: int) -> Iterator[List[LoadFile]]:
    """Provide the files: those that lie at the storage, else new ones that are removed at the end.

    Raises:
        BenchmarkError: a path is not a folder for files.
    """
    folder = local_path(storage)
    files = name_files(storage if folder is None else os.path.abspath(folder), size_mb)
    if folder is None or all(_is_complete(file) for file in files):
        yield [add_checksum(file) for file in files]
        return
    made = os.path.join(require_folder(folder), f"treehammer-bench-{uuid.uuid4().hex[:8]}")
    try:
        yield _make_folder(made, size_mb)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _make_folder(folder: str, size_mb: int) -> List[LoadFile]:
    try:
        os.mkdir(folder)
        return write_files(folder, size_mb)
    except OSError as error:
        raise BenchmarkError(
            f"{folder}: {error.strerror or error}. The benchmark writes {CLIENTS} files of "
            f"{size_mb} MB there and removes them."
        ) from error


def require_folder(path: str) -> str:
    """Return the absolute path of an existing folder.

    Raises:
        BenchmarkError: there is none.
    """
    if not os.path.isdir(path):
        raise BenchmarkError(
            f"{path}: no such folder. Name a folder of the mounted storage, or a URL "
            "(http://, https:// or root://) below which the benchmark's files lie."
        )
    return os.path.abspath(path)


def _is_complete(file: LoadFile) -> bool:
    try:
        return os.stat(file.url).st_size == file.size
    except OSError:
        return False
