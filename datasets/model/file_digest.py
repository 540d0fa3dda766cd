"""Size, adler32 and sha256 of a file, computed in one pass."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

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
    size, adler, sha = 0, 1, hashlib.sha256()
    with ExitStack() as stack:
        reader = stack.enter_context(source.open("rb"))
        writer = stack.enter_context(copy_to.open("xb")) if copy_to else None
        while block := reader.read(BLOCK):
            size += len(block)
            adler = zlib.adler32(block, adler)
            sha.update(block)
            if writer:
                writer.write(block)
            if advance:
                advance(len(block))
    return FileDigest(size, f"{adler:08x}", sha.hexdigest())
