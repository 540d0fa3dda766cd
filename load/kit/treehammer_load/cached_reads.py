"""Workload of the test ``cache-read``: whole files, or a fraction of their blocks without repeats.

Each file is divided into blocks, which a seeded permutation orders.  A fraction reads the first ones,
so that 0.9 reads 90 % of the bytes.  Files of a cache that was emptied are read before, in part
or whole, as the axis ``server_cache`` requires, and the cache's own counts become figures.
"""

from __future__ import annotations

import math
import random
from itertools import chain
from typing import Callable, Dict, Iterator, List, NamedTuple, Sequence

from ....collectors.job_spec import HALF, SERVER_CACHE_AXIS, WARM
from ....collectors.record.operation_steps import CLOSE, COPY, OPEN, READ, READ_FILE
from .cache_counter import LoadCacheCounter
from .load_driver import ClosedLoop
from .load_task import GENERATOR, LoadTask
from .operation import Chunk, LoadFile, Operation
from .payload import LoadOutcome, perform_load
from .workloads import MAX_SEQUENCE, LoadSpan

#: Ways of reading (axis ``pattern``): whole files, or a fraction of their blocks.
WHOLE, SPARSE = "copy", "sparse"
#: Bytes of a block where neither axis nor setting names any.
DEFAULT_BLOCK_KIB = 1024
#: Operations that read, of which one is the load's.
_READS = frozenset({READ, READ_FILE, COPY})


def choose_blocks(size: int, block: int, fraction: float, seed: str) -> List[Chunk]:
    """Choose blocks of a file that together are a fraction of its bytes, in random order.

    No block repeats.  The last block of a file may be short; the last one that is read is cut so
    that the number of bytes is exact, rounded up.
    """
    numbers = list(range(math.ceil(size / block)))
    random.Random(seed).shuffle(numbers)
    chunks: List[Chunk] = []
    remaining = min(math.ceil(round(size * fraction, 6)), size)
    for number in numbers:
        if not remaining:
            break
        length = min(block, size - number * block, remaining)
        chunks.append((number * block, length))
        remaining -= length
    return chunks


def choose_primed(chunks: Sequence[Chunk], state: str, size: int) -> List[Chunk]:
    """Choose what is read of a file before: all of it for ``warm``, for ``half`` the blocks of low offsets.

    A cache has nothing left to fetch ahead of a whole file, which would disturb the load and delay
    the cache's counts.  Neighbors share the blocks of a cache, so the lower half of the blocks
    is half of the cache's as well.
    """
    if state == WARM:
        length = DEFAULT_BLOCK_KIB * 1024
        return [(offset, min(length, size - offset)) for offset in range(0, size, length)]
    return sorted(chunks)[: (len(chunks) + 1) // 2] if state == HALF else []


class _Part(NamedTuple):
    """The part of a file that one client reads."""

    client: int
    file: LoadFile
    chunks: Sequence[Chunk]


class CachedReads:
    """Reads of one execution.

    Args:
        task: the execution.

    Attributes:
        pattern: :data:`WHOLE` or :data:`SPARSE`.
        state: of the cache before; '' for any.
    """

    def __init__(self, task: LoadTask) -> None:
        self.pattern = task.read_choice("pattern", (SPARSE, WHOLE))
        self.state = str(task.axes.get(SERVER_CACHE_AXIS, ""))
        fraction = task.read_number("fraction", 1.0, (0, 1))
        block = task.read_block() or DEFAULT_BLOCK_KIB * 1024
        clients = task.read_clients()
        self._task = task
        count = task.read_count("files", 1, MAX_SEQUENCE)
        first = task.index * clients * count
        by_file: Dict[int, List[int]] = {}
        for position in range(clients * count):
            number = (first + position) % len(task.files)
            by_file.setdefault(number, []).append(position // count)
        self.parts: List[_Part] = []
        for number, members in by_file.items():
            file = task.files[number]
            # Seeded by the file alone: through every door, the same blocks are read.
            seed = f"{task.seed} {number} {block}"
            share = 1.0 if self.pattern == WHOLE else fraction
            chunks = choose_blocks(file.size, block, share, seed)
            self.parts += [
                _Part(client, file, chunks[place :: len(members)])
                for place, client in enumerate(members)
            ]
        self.parts.sort()

    @property
    def files(self) -> Sequence[LoadFile]:
        """The files that are read, each once."""
        return list(dict.fromkeys(part.file for part in self.parts))

    def list_chunks(self) -> Dict[str, List[Chunk]]:
        """List the pieces of each file that are read, by its URL."""
        chunks: Dict[str, List[Chunk]] = {}
        for part in self.parts:
            chunks.setdefault(part.file.url, []).extend(part.chunks)
        return chunks

    def list_preparations(self) -> List[Iterator[Operation]]:
        """List the reads of each client that come before the load."""
        parts = self.parts
        if self.state == WARM:  # by one of the clients that share a file
            parts = list({part.file: part for part in parts}.values())
        primed = [
            part._replace(chunks=choose_primed(part.chunks, self.state, part.file.size))
            for part in parts
        ]
        return self._sequence([part for part in primed if part.chunks], _read_chunks)

    def list_reads(self) -> List[Iterator[Operation]]:
        """List the reads of each client."""
        if self.pattern == SPARSE:
            return self._sequence(self.parts, _read_chunks)
        name = READ_FILE if self._task.client == GENERATOR else COPY
        return self._sequence(
            self.parts, lambda part: iter([Operation(0.0, name, part.client, part.file)])
        )

    @staticmethod
    def _sequence(
        parts: Sequence[_Part], read: Callable[[_Part], Iterator[Operation]]
    ) -> List[Iterator[Operation]]:
        """Let each client read its parts one after the other."""
        by_client: Dict[int, List[_Part]] = {}
        for part in parts:
            by_client.setdefault(part.client, []).append(part)
        return [chain.from_iterable(map(read, members)) for members in by_client.values()]


def _read_chunks(part: _Part) -> Iterator[Operation]:
    yield Operation(0.0, OPEN, part.client, part.file, keep=True)
    for chunk in part.chunks:
        yield Operation(0.0, READ, part.client, part.file, [chunk])
    # A cache counts the reads of a file when it is closed.
    yield Operation(0.0, CLOSE, part.client, part.file)


def read_through_cache(task: LoadTask) -> LoadOutcome:
    """Perform the load, and add the exact counts of clients and cache to its figures."""
    reads = CachedReads(task)
    counter = LoadCacheCounter(task.server_cache, reads.list_chunks())
    preparations = reads.list_preparations()

    def make_loop(_task: LoadTask, _span: LoadSpan) -> ClosedLoop:
        return ClosedLoop(reads.list_reads(), moves_files=reads.pattern == WHOLE)

    try:
        outcome = perform_load(
            task,
            make_loop,
            prepare_reads=preparations,
            begin=lambda: counter.begin(is_primed=bool(preparations)),
        )
        requested_bytes = sum(row["bytes"] for row in outcome.rows if row["operation"] in _READS)
        outcome.figures.update(
            asked_mb=requested_bytes / 1e6,
            asked_fraction=requested_bytes / sum(file.size for file in reads.files),
            **counter.end(requested_bytes),
        )
        block = outcome.figures.pop("cache_block_kib", None)
        outcome.values["cache_block_kib"] = None if block is None else round(block)
    finally:
        counter.close()
    return outcome
