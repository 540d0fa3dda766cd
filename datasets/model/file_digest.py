"""Size, adler32 and sha256 of a file, computed in one pass."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from treehammer.collectors.shared_files import open_regular_file

BLOCK = 1 << 20


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes; ``adler32`` as 8 hex digits, ``sha256`` as 64."""

    size: int
    adler32: str
    sha256: str


def digest_file(
    source: Path, advance: Callable[[int], None] | None = None, *, copy_to: Path | None = None
) -> FileDigest:
    """Read a file once, and copy it to ``copy_to`` if that is given.

    Args:
        source: the file.
        advance: receives the number of bytes of each block.
        copy_to: a file to create.
    """
    opened = open_regular_file(source, follows_links=True)
    with opened as reader, copy_to.open("xb") if copy_to else nullcontext() as copy:
        return digest_blocks(iter(partial(reader.read, BLOCK), b""), advance, copy)


def digest_blocks(
    blocks: Iterable[bytes],
    advance: Callable[[int], None] | None = None,
    copy: BinaryIO | None = None,
) -> FileDigest:
    """Digest a file given as blocks, and write them to ``copy`` if that is given."""
    size, adler, sha = 0, 1, hashlib.sha256()
    for block in blocks:
        size += len(block)
        adler = zlib.adler32(block, adler)
        sha.update(block)
        if copy:
            copy.write(block)
        if advance:
            advance(len(block))
    return FileDigest(size, f"{adler:08x}", sha.hexdigest())
