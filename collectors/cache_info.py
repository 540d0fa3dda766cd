"""State of a file in an XCache, as its ``.cinfo`` file has it.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Sequence, Tuple

#: Offset and length of a read.
Chunk = Tuple[int, int]
#: Version of the files that XRootD 4.12 and later write; earlier ones have other fields.
INFO_VERSION = 4
_VERSION = struct.Struct("<i")
#: Size of a block, size of the file, creation, time without checksums, accesses, flags, records.
_STORE = struct.Struct("<qqqqqIi")
_CHECKSUM = struct.Struct("<I")
#: Attach, detach, files attached, seconds, records merged, reserved, bytes hit, missed, bypassed.
_ACCESS = struct.Struct("<qqiiiiqqq")
_MAX_BLOCKS = 100_000_000


class ReadCounts(NamedTuple):
    """Bytes that clients read through a cache, and bytes that it stored, in total.

    Attributes:
        hit: bytes read from the cache.
        missed: bytes fetched from the origin and stored.
        bypassed: bytes fetched from the origin and not stored.
        stored: bytes of the blocks that were stored.
    """

    hit: int = 0
    missed: int = 0
    bypassed: int = 0
    stored: int = 0

    @property
    def fetched(self) -> int:
        """Bytes fetched from the origin."""
        return self.stored + self.bypassed

    def plus(self, other: ReadCounts, sign: int = 1) -> ReadCounts:
        """Return the sum of both, or their difference for ``sign = -1``."""
        return ReadCounts(*(a + sign * b for a, b in zip(self, other)))  # noqa: B905  (Python 3.9)


class CacheInfo(NamedTuple):
    """Content of a ``.cinfo`` file.

    Attributes:
        block: bytes of a block, ``pfc.blocksize`` when the file was first opened.
        size: bytes of the file.
        accesses: number of accesses ever.
        is_open: whether the last access has not ended.
        counts: of all accesses.
        stored: bit N is set if block N is stored.
    """

    block: int
    size: int
    accesses: int
    is_open: bool
    counts: ReadCounts
    stored: int = 0

    def count_stored(self, chunks: Sequence[Chunk]) -> int:
        """Count the bytes of chunks that lie in stored blocks."""
        count = 0
        for offset, length in chunks:
            position, end = offset, offset + length
            while position < end:
                number = position // self.block
                edge = min((number + 1) * self.block, end)
                count += edge - position if self.stored >> number & 1 else 0
                position = edge
        return count


def parse_cache_info(content: bytes) -> CacheInfo:
    """Parse a ``.cinfo`` file.

    Raises:
        ValueError: another version, or incomplete, as while the server writes it.
    """
    try:
        (version,) = _VERSION.unpack_from(content)
        if version != INFO_VERSION:
            raise ValueError(f"version {version} of .cinfo, expected {INFO_VERSION}")
        store = content[_VERSION.size : _VERSION.size + _STORE.size]
        block, size, _, _, accesses, _, records = _STORE.unpack(store)
        offset = _VERSION.size + _STORE.size
        _check(content, offset, store)
        if not 0 < size <= block * _MAX_BLOCKS or records < 0:
            raise ValueError("impossible sizes in .cinfo")
        begin = offset + _CHECKSUM.size
        blocks = (size - 1) // block + 1
        bits = content[begin : begin + (blocks + 7) // 8]
        end = begin + len(bits) + records * _ACCESS.size
        _check(content, end, content[begin:end])
        rows = list(_ACCESS.iter_unpack(content[begin + len(bits) : end]))
    except struct.error:
        raise ValueError("incomplete .cinfo") from None
    hit, missed, bypassed = (sum(row[number] for row in rows) for number in (6, 7, 8))
    is_open = bool(rows) and rows[-1][1] == 0
    numbers = int.from_bytes(bits, "little") & ((1 << blocks) - 1)
    stored_bytes = bin(numbers).count("1") * block
    if numbers >> (blocks - 1):  # the last block may be short
        stored_bytes -= blocks * block - size
    counts = ReadCounts(hit, missed, bypassed, stored_bytes)
    return CacheInfo(block, size, accesses, is_open, counts, numbers)


def _check(content: bytes, offset: int, checked: bytes) -> None:
    (checksum,) = _CHECKSUM.unpack_from(content, offset)
    if compute_crc32c(checked) != checksum:
        raise ValueError("wrong checksum in .cinfo")


def _make_crc_table() -> Sequence[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _make_crc_table()


def compute_crc32c(content: bytes) -> int:
    """Compute the CRC-32C (Castagnoli), which Python's library lacks."""
    value = 0xFFFFFFFF
    for byte in content:
        value = value >> 8 ^ _CRC_TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
