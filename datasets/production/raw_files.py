"""Writer of raw files: bytes that depend on seed, file and position alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from treehammer.datasets.model.file_digest import FileDigest, digest_blocks
from treehammer.datasets.specs.raw_spec import RawSpec

#: Bytes that one hash yields; part of the definition of the files.
RAW_BLOCK_BYTES = 1 << 20


def generate_blocks(spec: RawSpec, index: int) -> Iterator[bytes]:
    """Generate a file's bytes: block N is SHAKE-128 of ``treehammer/raw/SEED/FILE/N``.

    Args:
        spec: the spec.
        index: number of the file, from 0.
    """
    for start in range(0, spec.file_size, RAW_BLOCK_BYTES):
        key = f"treehammer/raw/{spec.seed}/{index}/{start // RAW_BLOCK_BYTES}"
        size = min(RAW_BLOCK_BYTES, spec.file_size - start)
        yield hashlib.shake_128(key.encode()).digest(size)


def write_raw_file(
    spec: RawSpec, index: int, path: Path, advance: Callable[[int], None]
) -> FileDigest:
    """Write a file block by block; ``advance`` receives the bytes of each block."""
    with path.open("xb") as stream:
        return digest_blocks(generate_blocks(spec, index), advance, stream)
