"""Map of a ROOT file: its baskets by offset, joined with the reads of a command.

A TTree's baskets are records of their own with the names of branch and tree, so that a walk over all
records finds them without ROOT (as ``TFile::Map`` does). Pages of an RNTuple need its page lists.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from .file_reads import FileReads, Ranges

#: Names of branches that a record lists.
MAX_BRANCHES = 500
_MAGIC = b"root"
_BASKET = b"TBasket"
_NTUPLE = b"ROOT::RNTuple"
#: Version of a record from which on its offsets have 64 bits.
_LARGE_VERSION = 1000
_RECORD = struct.Struct(">iHIIHH")


class MapError(Exception):
    """The file has no map; the message is the reason."""


@dataclass(frozen=True)
class Basket:
    """A basket of a branch.

    Attributes:
        start: offset of its record; the header of ``header`` bytes comes first.
        end: offset behind it.
        unzipped: bytes of its content when decompressed.
    """

    start: int
    end: int
    header: int
    unzipped: int
    tree: str
    branch: str

    @property
    def zipped(self) -> int:
        """Bytes of its compressed content."""
        return self.end - self.start - self.header


def map_baskets(path: str) -> List[Basket]:
    """List the baskets of all TTrees of a file by offset.

    Raises:
        MapError: the file is no ROOT file, is damaged, or holds no TTree with baskets.
    """
    try:
        with (
            open(path, "rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return [*_walk_records(content)]
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise MapError(f"its records cannot be read: {error}") from error


def _walk_records(content: mmap.mmap) -> Iterator[Basket]:
    if content[:4] != _MAGIC:
        raise MapError("it is no ROOT file")
    version, position = struct.unpack_from(">ii", content, 4)
    (end,) = struct.unpack_from(">q" if version >= 1_000_000 else ">i", content, 12)
    count = 0
    while position < min(end, len(content)):
        size, key_version, unzipped, _, header, _ = _RECORD.unpack_from(content, position)
        if size == 0:
            raise MapError(f"the record at {position} has no size")
        if size < 0:  # a gap, which a deleted object left
            position -= size
            continue
        names = position + _RECORD.size + (16 if key_version > _LARGE_VERSION else 8)
        kind, names = _read_name(content, names)
        if kind == _BASKET:
            branch, names = _read_name(content, names)
            tree, _ = _read_name(content, names)
            yield Basket(
                position,
                position + size,
                header,
                unzipped,
                tree.decode("utf-8", "replace"),
                branch.decode("utf-8", "replace"),
            )
            count += 1
        elif kind == _NTUPLE:
            raise MapError("it holds an RNTuple, whose pages are known to ROOT and uproot alone")
        position += size
    if not count:
        raise MapError("it holds no baskets of a TTree")


def _read_name(content: mmap.mmap, position: int) -> Tuple[bytes, int]:
    """Read a text that its length precedes; return it and the offset behind it."""
    length = content[position]
    position += 1
    if length == 255:
        (length,) = struct.unpack_from(">i", content, position)
        position += 4
    return content[position : position + length], position + length


def map_reads(file: FileReads) -> Dict[str, Any]:
    """Return what the map of a file says of its reads, for its record; empty for other files."""
    if file.is_connection or not file.calls or not _is_root_file(file.path):
        return {}
    if file.touched is None:
        return {"map_missing": "not every read of it is recorded"}
    try:
        baskets = map_baskets(file.path)
    except MapError as error:
        return {"map_missing": str(error)}
    return {"map": join_reads(file, baskets)}


def _is_root_file(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(4) == _MAGIC
    except OSError:
        return False


def join_reads(file: FileReads, baskets: Sequence[Basket]) -> Dict[str, Any]:
    """Join the reads of a file with its baskets.

    A read that spans several baskets may have been made for some of them alone: ROOT fills the gaps
    between wanted baskets up to 256 kB. The recorder knows the wanted blocks of ROOT's vector reads.
    Of others, branches with a basket at the edge of a read were wanted; further ones that reads cover
    are ``spanned``. Where no read begins or ends at a basket, as those of a copy, all that are covered
    count as read.
    """
    counts, edges = _count_reads(file.list_reads(), baskets)
    if file.wanted:
        edges = _count_reads(file.wanted, baskets)[1]
    ranges = file.merge_ranges()
    fetched = [
        basket
        for basket in baskets
        if _cover(ranges, basket.start + basket.header, basket.end) == basket.zipped
    ]
    is_single = len({basket.tree for basket in baskets}) == 1

    def name(basket: Basket) -> str:
        return basket.branch if is_single else f"{basket.tree}/{basket.branch}"

    covered_names = dict.fromkeys(name(basket) for basket in fetched)
    wanted_names = {name(baskets[number]) for number in edges} & covered_names.keys()
    wanted_names = wanted_names or set(covered_names)
    wanted = [basket for basket in fetched if name(basket) in wanted_names]
    zipped = sum(basket.zipped for basket in wanted)
    wanted_bytes = sum(_cover(ranges, basket.start, basket.end) for basket in wanted)
    basket_bytes = sum(_cover(ranges, basket.start, basket.end) for basket in baskets)
    total = sum(end - start for start, end in ranges)
    document: Dict[str, Any] = {
        "trees": sorted({basket.tree for basket in baskets}),
        "branches": len({name(basket) for basket in baskets}),
        "branches_read": len(wanted_names),
        "branches_spanned": len(covered_names) - len(wanted_names),
        "names": [branch for branch in covered_names if branch in wanted_names][:MAX_BRANCHES],
        "baskets": len(baskets),
        "baskets_read": len(wanted),
        "baskets_repeated": sum(count > 1 for count in counts),
        "wanted_bytes": wanted_bytes,
        "over_read_bytes": basket_bytes - wanted_bytes,
        "other_bytes": total - basket_bytes,
    }
    if zipped:
        document["compression"] = sum(basket.unzipped for basket in wanted) / zipped
    return document


def _count_reads(
    reads: Sequence[Tuple[int, int]], baskets: Sequence[Basket]
) -> Tuple[List[int], Set[int]]:
    """Count the reads that cover each basket, and find those at an edge of one."""
    starts = [basket.start for basket in baskets]
    counts, edges = [0] * len(baskets), set()
    for offset, length in reads:
        end = offset + length
        number = bisect_left(starts, offset)
        if number < len(baskets) and baskets[number].start == offset and baskets[number].end <= end:
            edges.add(number)
        while number < len(baskets) and baskets[number].end <= end:
            counts[number] += 1
            if baskets[number].end == end:
                edges.add(number)
            number += 1
    return counts, edges


def _cover(ranges: Ranges, start: int, end: int) -> int:
    """Return the number of bytes of [start, end) within sorted ranges."""
    number = max(0, bisect_left(ranges, (start, 0)) - 1)
    size = 0
    while number < len(ranges) and ranges[number][0] < end:
        size += max(0, min(end, ranges[number][1]) - max(start, ranges[number][0]))
        number += 1
    return size
