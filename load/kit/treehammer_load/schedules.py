"""Schedules of reads and opens: instants, readers and pieces of files."""

from __future__ import annotations

import random
from itertools import accumulate, count
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

from ....collectors.record.operation_steps import OPEN, READ, VECTOR_READ
from .operation import Chunk, LoadFile, Operation

#: Patterns of reading.
CONSECUTIVE, RANDOM, VECTOR = "consecutive", "random", "vector"
PATTERNS = (CONSECUTIVE, RANDOM, VECTOR)


def pace_at_rate(
    rate_hz: float, start_s: float, end_s: float, part: int = 0, parts: int = 1
) -> Iterator[float]:
    """Iterate over evenly spaced instants.

    Args:
        rate_hz: instants per second.
        start_s: first possible instant.
        end_s: no instant is later or equal.
        part: number of this generator among those that load together; their instants alternate.
        parts: number of these generators.
    """
    for number in count():
        due_s = start_s + (number + part / parts) / rate_hz
        # A rounding error must not add an instant.
        if due_s >= end_s - 1e-9:
            return
        yield due_s


def pace_clients(
    clients: int, period_s: float, start_s: float, end_s: float, seed: int
) -> Iterator[Tuple[float, int]]:
    """Iterate over instants and clients: each client acts once a period, at a phase of its own."""
    generator = random.Random(seed)
    phases = sorted((generator.random() * period_s, client) for client in range(clients))
    for number in count():
        for phase, client in phases:
            due_s = start_s + number * period_s + phase
            if due_s >= end_s:
                return
            yield due_s, client


def schedule_opens(
    instants: Iterator[float], clients: int, files: Sequence[LoadFile], seed: int
) -> Iterator[Operation]:
    """Schedule opens by each client in turn, of files drawn at random."""
    generator = random.Random(seed)
    for number, due_s in enumerate(instants):
        yield Operation(due_s, OPEN, number % clients, generator.choice(files))


def schedule_reads(
    instants: Iterator[Tuple[float, int]],
    clients: int,
    files: Sequence[LoadFile],
    seed: int,
    choose_chunks: ChunkChooser,
    opening: Tuple[float, float],
) -> Iterator[Operation]:
    """Schedule the opening of a file for each client, evenly in ``opening``, then the reads."""
    client_files = [files[client % len(files)] for client in range(clients)]
    begin_s, end_s = opening
    for client in range(clients):
        due_s = begin_s + (end_s - begin_s) * client / clients
        yield Operation(due_s, OPEN, client, client_files[client], keep=True)
    generators = [random.Random(f"{seed} {client}") for client in range(clients)]
    for due_s, client in instants:
        chunks = choose_chunks(client, client_files[client].size, generators[client])
        name = READ if len(chunks) == 1 else VECTOR_READ
        yield Operation(due_s, name, client, client_files[client], chunks)


def sequence_reads(
    client: int, file: LoadFile, reads: int, lengths: Tuple[int, int], vector: int, seed: int
) -> Iterator[Operation]:
    """Open a file and read it at random positions.

    Args:
        client: number of the client.
        file: the file.
        reads: number of reads.
        lengths: shortest and longest piece in bytes.
        vector: pieces of one read, which do not overlap and are in order.
        seed: seed of positions and lengths.
    """
    generator = random.Random(f"{seed} {client}")
    yield Operation(0.0, OPEN, client, file, keep=True)
    name = READ if vector == 1 else VECTOR_READ
    for _ in range(reads):
        sizes = [generator.randint(*lengths) for _ in range(vector)]
        yield Operation(0.0, name, client, file, place_pieces(file.size, sizes, generator))


#: Chooses the next chunks of a client in a file of a size.
ChunkChooser = Callable[[int, int, random.Random], Sequence[Chunk]]


def make_chunk_chooser(pattern: str, block: int, vector: int) -> ChunkChooser:
    """Make the function that chooses the next chunks to read.

    Args:
        pattern: ``consecutive`` blocks from a random one, each client on its own; blocks at
            ``random``; or a ``vector`` of pieces at random, without overlap and in order.
        block: bytes of one operation.
        vector: pieces of one vector read.
    """
    edges = [block * number // vector for number in range(vector + 1)]
    pieces = [edges[number + 1] - edges[number] for number in range(vector)]
    return {
        CONSECUTIVE: _ConsecutiveChunks(block).choose,
        RANDOM: lambda _client, size, generator: [(generator.randint(0, size - block), block)],
        VECTOR: lambda _client, size, generator: place_pieces(size, pieces, generator),
    }[pattern]


class _ConsecutiveChunks:
    """Position of each client in its file; after the last whole block follows the first."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._next: Dict[int, int] = {}

    def choose(self, client: int, size: int, generator: random.Random) -> List[Chunk]:
        blocks = size // self._block
        number = self._next.get(client, generator.randrange(blocks))
        self._next[client] = (number + 1) % blocks
        return [(number * self._block, self._block)]


def place_pieces(size: int, pieces: Sequence[int], generator: random.Random) -> List[Chunk]:
    """Draw the gaps between pieces of a file of a size, so that the pieces never overlap."""
    cuts = sorted(generator.randint(0, size - sum(pieces)) for _ in pieces)
    before = list(accumulate(pieces, initial=0))
    return [(cut + before[n], pieces[n]) for n, cut in enumerate(cuts)]
