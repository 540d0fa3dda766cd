"""Definition of a storage's benchmark: parts, weights and score, and the files that it reads.

The files hold seeded bytes that no storage can compress or deduplicate.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import shutil
import uuid
import zlib
from contextlib import contextmanager
from typing import Callable, Iterator, List, Mapping, NamedTuple

from ...collectors.record.operation_steps import OPEN, READ, READ_FILE, VECTOR_READ
from ...collectors.shared_files import local_path
from ..kit.treehammer_load.operation import LoadFile, Operation
from ..kit.treehammer_load.schedules import place_pieces, sequence_reads

# Every value here determines the score.  Raise BENCHMARK_VERSION with any change of them: only scores
# of one version compare.

BENCHMARK_VERSION = 1

#: Clients at a time, each with a file of its own.
CLIENTS = 4
#: Size of a file in 10^6 bytes.
FILE_MB = 256
#: Rounds of all parts; of each part the median counts.
ROUNDS = 5
#: Relative standard deviation of the rounds' scores up to which a score is repeatable.
MAX_SPREAD = 0.1
#: A result counts at most as this multiple of its reference: more was not the storage's speed.
MAX_RATIO = 10.0

_SEED = 1
#: Sparse reads: bytes of a cluster of a tree, and its baskets that are read.
_CLUSTER, _BASKETS, _BASKET_BYTES = 4_000_000, 6, (10_000, 20_000)
_VECTORS, _PIECES, _PIECE_BYTES = 32, 32, (2_000, 50_000)
_OPENS = 250

#: Makes the operations of a client on its file in a round.
MakeSequence = Callable[[int, LoadFile, int], Iterator[Operation]]


class Part(NamedTuple):
    """One part of the benchmark.

    Attributes:
        name: short name.
        meaning: short description of a client's work.
        operation: operation that is counted.
        unit: unit of the result: ``MB/s``, or ``1/s`` for operations.
        reference: result that scores 100.
        weight: exponent in the score; all weights add up to 1.
        moves_files: whether whole files are moved, mostly outside the interpreter.
        make: makes the operations.
    """

    name: str
    meaning: str
    operation: str
    unit: str
    reference: float
    weight: float
    moves_files: bool
    make: MakeSequence


def _copy_file(client: int, file: LoadFile, _round: int) -> Iterator[Operation]:
    yield Operation(0.0, READ_FILE, client, file)


def _read_sparsely(client: int, file: LoadFile, round_: int) -> Iterator[Operation]:
    """Read a few baskets of every cluster from the begin of a file to its end."""
    generator = random.Random(f"{_SEED} {round_} {client}")
    yield Operation(0.0, OPEN, client, file, keep=True)
    for begin in range(0, file.size - _CLUSTER + 1, _CLUSTER):
        sizes = [generator.randint(*_BASKET_BYTES) for _ in range(_BASKETS)]
        for offset, size in place_pieces(_CLUSTER, sizes, generator):
            yield Operation(0.0, READ, client, file, [(begin + offset, size)])


def _read_vectors(client: int, file: LoadFile, round_: int) -> Iterator[Operation]:
    return sequence_reads(client, file, _VECTORS, _PIECE_BYTES, _PIECES, _SEED + round_)


def _open_often(client: int, file: LoadFile, _round: int) -> Iterator[Operation]:
    return (Operation(0.0, OPEN, client, file) for _ in range(_OPENS))


PARTS = (
    Part("copy", "whole files, with checksum", READ_FILE, "MB/s", 1000.0, 0.3, True, _copy_file),
    Part("sparse", "baskets of 2 % of a tree", READ, "1/s", 1000.0, 0.3, False, _read_sparsely),
    Part("vector", "32 pieces at a time", VECTOR_READ, "MB/s", 200.0, 0.3, False, _read_vectors),
    Part("open", "open and close", OPEN, "1/s", 1000.0, 0.1, False, _open_often),
)


def find_ratio(part: Part, value: float) -> float:
    """Return a result as a multiple of its reference, as far as it counts."""
    return min(value / part.reference, MAX_RATIO)


def compute_score(values: Mapping[str, float]) -> float:
    """Compute the score: 100 times the weighted geometric mean of all ratios.

    Args:
        values: name of each part -> its result, above 0.
    """
    logs = (part.weight * math.log(find_ratio(part, values[part.name])) for part in PARTS)
    return 100.0 * math.exp(math.fsum(logs))


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
    is_complete = all(
        os.path.exists(file.url) and os.path.getsize(file.url) == file.size for file in files
    )
    if folder is None or is_complete:
        yield [add_checksum(file) for file in files]
        return
    path = os.path.join(require_folder(folder), f"treehammer-bench-{uuid.uuid4().hex[:8]}")
    try:
        yield _make_folder(path, size_mb)
    finally:
        shutil.rmtree(path, ignore_errors=True)


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
