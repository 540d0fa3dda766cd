"""Counts of an XCache by its ``.cinfo`` files.

They count the bytes of one access, from the first open of a file to its last close, by origin: from
the cache (hit), fetched and stored meanwhile (missed), fetched and dropped (bypassed).
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote, urlsplit

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


#: Seconds until a cache has closed and counted the files of a load, and between two looks.  5.5.3 closes
#: a file that it still fetched ahead of the reads after 30 s, 5.8.1 and 6.2.0 after 10.
SETTLE_S, POLL_S = 40.0, 0.3


class CacheCounter:
    """Counts the reads of files at the cache behind their door.

    Args:
        folder: folder of the cache's files; '' if this job does not see it.
        urls: addresses of the files that are read.
    """

    def __init__(self, folder: str, urls: Iterable[str]) -> None:
        self.paths = ["/" + unquote(urlsplit(url).path).lstrip("/") for url in urls]
        self.folder = folder
        if folder and not os.path.isdir(folder):
            print(f"treehammer_load: this job does not see the cache's {folder}", flush=True)
            self.folder = ""
        self.before: Dict[str, CacheInfo] = {}

    def begin(self, *, is_primed: bool) -> bool:
        """Note the state before, when the cache has closed the files that were read until then.

        Returns:
            whether it is known.
        """
        infos = self._await_infos({}, complete=is_primed)
        self.before = infos or {}
        return infos is not None

    def await_end(self) -> Optional[Dict[str, CacheInfo]]:
        """Wait until the cache has counted a new access to each file; None if it does not."""
        return self._await_infos(self.before, complete=True)

    def count_bytes(self) -> Dict[str, int]:
        """Return the values of the catalogue since :meth:`begin`; empty if they are unknown."""
        infos = self.await_end()
        if infos is None:
            return {}
        total = self.subtract_before(infos)
        return {
            "server_cache_stored_bytes": sum(info.counts.stored for info in self.before.values()),
            "server_cache_asked_bytes": total.hit + total.missed + total.bypassed,
            "server_cache_fetched_bytes": total.fetched,
            "cache_block_kib": find_block(infos) // 1024,
        }

    def subtract_before(self, infos: Mapping[str, CacheInfo]) -> ReadCounts:
        """Sum the counts of all files since :meth:`begin`."""
        total = ReadCounts()
        for path, info in infos.items():
            before = self.before.get(path)
            total = total.plus(info.counts).plus(before.counts if before else ReadCounts(), -1)
        return total

    def _find_open(
        self, infos: Mapping[str, CacheInfo], before: Mapping[str, CacheInfo], *, complete: bool
    ) -> str:
        """Describe a file without an ended new access; '' if there is none."""
        paths = [path for path, info in infos.items() if info.is_open]
        for path in self.paths if complete else ():
            accesses = before[path].accesses if path in before else 0
            if path not in infos or infos[path].accesses <= accesses:
                paths.append(path)
        return f"{paths[0]} is not closed" if paths else ""

    def _await_infos(
        self, before: Mapping[str, CacheInfo], *, complete: bool
    ) -> Optional[Dict[str, CacheInfo]]:
        """Wait until all files have ended a new access, twice with the same counts; None if never.

        Without ``complete`` files may be missing, but those that exist must be closed.
        """
        if not self.folder:
            return None
        last: Optional[Dict[str, CacheInfo]] = None
        problem, deadline = "", time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            infos, problem = self._read_infos()
            problem = problem or self._find_open(infos, before, complete=complete)
            if problem:
                last = None
            elif infos == last:
                return infos
            else:
                last = infos
            time.sleep(POLL_S)
        print(f"treehammer_load: no counts of the cache in {self.folder}: {problem}", flush=True)
        return None

    def _read_infos(self) -> Tuple[Dict[str, CacheInfo], str]:
        infos, problem = {}, ""
        for path in self.paths:
            try:
                with open(f"{self.folder}{path}.cinfo", "rb") as stream:
                    infos[path] = parse_cache_info(stream.read())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problem = f"{path}.cinfo: {error}"
        return infos, problem


def find_block(infos: Mapping[str, CacheInfo]) -> int:
    """Find the bytes of the largest block."""
    return max(info.block for info in infos.values())
