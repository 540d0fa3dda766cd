"""Content of files that a load writes: seeded bytes, the same on every node."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Iterator, Sequence

#: Bytes of a block, and blocks after which the content repeats.
BLOCK, BLOCKS = 1 << 22, 8


@lru_cache(maxsize=1)
def make_blocks() -> Sequence[bytes]:
    """Make the blocks of all files once; takes a tenth of a second."""
    return [hashlib.shake_128(b"treehammer %d" % number).digest(BLOCK) for number in range(BLOCKS)]


def iterate_blocks(number: int, size: int) -> Iterator[bytes]:
    """Iterate over the content of a file: its number decides which block is the first."""
    blocks = make_blocks()
    while size > 0:
        block = blocks[number % BLOCKS]
        yield block if size >= BLOCK else block[:size]
        number, size = number + 1, size - BLOCK
