"""Definition of the benchmark: files, parts, weights, and the score.

Every value here determines the score.  Raise :data:`BENCHMARK_VERSION` with any change of them: only
scores of one version compare.
"""

from __future__ import annotations

import math
import random
from typing import Callable, Iterator, Mapping, NamedTuple

from ...kit.treehammer_load.operation import LoadFile, Operation
from ...kit.treehammer_load.schedule import place_pieces, sequence_reads
from ...record.operation_steps import OPEN, READ, READ_FILE, VECTOR_READ

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
