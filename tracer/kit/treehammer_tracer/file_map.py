"""Map of a ROOT file: its baskets and pages by offset, joined with the reads of a command.

A TTree's baskets are records of their own with the names of branch and tree, so that a walk over all
records finds them without ROOT (as ``TFile::Map`` does). The pages of an RNTuple are in its page lists,
which uproot reads where the node has it.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

from .file_reads import FileReads, Ranges

#: Names of branches that a record lists.
MAX_BRANCHES = 500
_MAGIC = b"root"
_BASKET = b"TBasket"
_NTUPLE = b"ROOT::RNTuple"
#: Version of a record from which on its offsets have 64 bits.
_LARGE_VERSION = 1000
#: Bytes of the checksum behind a page.
_CHECKSUM = 8
_RECORD = struct.Struct(">iHIIHH")


class MapError(Exception):
    """The file has no map; the message is the reason."""


@dataclass(frozen=True)
class Basket:
    """A basket of a branch, or a page of a top-level field with its checksum.

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
    """List the baskets of all TTrees, and the pages of all RNTuples of a file by offset.

    Raises:
        MapError: the file is no ROOT file, is damaged, or holds neither; or it holds an RNTuple and
            this Python has no uproot.
    """
    try:
        with (
            open(path, "rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            baskets, has_ntuples = _walk_records(content)
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise MapError(f"its records cannot be read: {error}") from error
    if has_ntuples:
        baskets += _list_pages(path)
    if not baskets:
        raise MapError("it holds no baskets of a TTree and no pages of an RNTuple")
    return sorted({basket.start: basket for basket in baskets}.values(), key=lambda b: b.start)


def _list_pages(path: str) -> List[Basket]:
    """List the pages of all RNTuples; those that several columns share count once."""
    try:
        import uproot
    except ImportError:
        raise MapError(
            "it holds an RNTuple, whose page lists need uproot in the Python that runs the worker"
        ) from None
    pages: List[Basket] = []
    try:
        with uproot.open(path) as file:
            names = [key for key, kind in file.classnames().items() if kind == "ROOT::RNTuple"]
            for name in names:
                pages += _list_ntuple_pages(name.partition(";")[0], file[name])
    except Exception as error:  # of any kind: uproot meets files of later releases
        raise MapError(f"uproot cannot read its page lists: {error}") from error
    return pages


def _list_ntuple_pages(name: str, ntuple: Any) -> Iterator[Basket]:
    fields, columns = ntuple.field_records, ntuple.column_records
    # A projected field, which has the name that users know, stores nothing of its own.
    projected = {alias.physical_id: alias.field_id for alias in ntuple.alias_column_records}
    tops = []
    for number, column in enumerate(columns):
        field = projected.get(number, column.field_id)
        while fields[field].parent_field_id != field:
            field = fields[field].parent_field_id
        tops.append(fields[field].field_name)
    for cluster in ntuple.page_link_list:
        for number, column_pages in enumerate(cluster):
            for page in column_pages.pages:
                start = page.locator.offset
                end = start + page.locator.num_bytes + (_CHECKSUM if page.has_checksum else 0)
                unzipped = abs(page.num_elements) * columns[number].nbits // 8
                yield Basket(start, end, 0, unzipped, name, tops[number])


def _walk_records(content: mmap.mmap) -> Tuple[List[Basket], bool]:
    """List the baskets of TTrees; return whether there is an RNTuple, too."""
    if content[:4] != _MAGIC:
        raise MapError("it is no ROOT file")
    version, position = struct.unpack_from(">ii", content, 4)
    (end,) = struct.unpack_from(">q" if version >= 1_000_000 else ">i", content, 12)
    baskets, has_ntuples = [], False
    while position < min(end, len(content)):
        size, key_version, unzipped, _, header, _ = _RECORD.unpack_from(content, position)
        if size == 0:
            raise MapError(f"the record at {position} has no size")
        if size < 0:  # a gap, which a deleted object left
            position -= size
            continue
        names = position + _RECORD.size + (16 if key_version > _LARGE_VERSION else 8)
        kind, names = _read_name(content, names)
        has_ntuples |= kind == _NTUPLE
        if kind == _BASKET:
            branch, names = _read_name(content, names)
            tree, _ = _read_name(content, names)
            end_of_record = position + size
            texts = (text.decode("utf-8", "replace") for text in (tree, branch))
            baskets.append(Basket(position, end_of_record, header, unzipped, *texts))
        position += size
    return baskets, has_ntuples


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
    if file.calls and "://" in file.path and not file.is_connection:
        return {"map_missing": "its baskets are not listed through a door"}
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

    A read that covers several baskets may have been made for some of them alone: ROOT fills the gaps
    between wanted baskets up to 256 kB, uproot up to 32 kB. The recorder knows the wanted blocks of
    ROOT's vector reads. Of other reads, those baskets at an edge were wanted, and further ones perhaps:
    the number of branches is then a range, and what was over-read is not known. Where all baskets
    are covered, as by a copy, all were read.
    """
    ranges = file.merge_ranges()
    names = _name_branches(baskets)
    sizes = [_cover(ranges, basket.start, basket.end) for basket in baskets]
    fetched = [
        number
        for number, basket in enumerate(baskets)
        if _cover(ranges, basket.start + basket.header, basket.end) == basket.zipped
    ]
    joins = _count_reads(_join_sequential(file.list_reads()), baskets)
    edges = _count_reads(file.wanted, baskets).edges if file.wanted else joins.edges
    covered = dict.fromkeys(names[number] for number in fetched)
    branches = {names[number] for number in edges} & covered.keys()
    if len(fetched) == len(baskets):
        branches = set(covered)
    is_exact = bool(file.wanted) or joins.longest <= 1 or len(branches) == len(covered)
    document: Dict[str, Any] = {
        "trees": sorted({basket.tree for basket in baskets}),
        "branches": len(set(names)),
        "branches_read": len(branches),
        "branches_most": len(branches) if is_exact else len(covered),
        "names": [branch for branch in covered if branch in branches][:MAX_BRANCHES],
        "baskets": len(baskets),
        "baskets_repeated": sum(count > 1 for count in joins.counts),
        "other_bytes": sum(end - start for start, end in ranges) - sum(sizes),
    }
    document.update(_sum_baskets([baskets[n] for n in fetched if names[n] in branches]))
    if is_exact:
        unwanted = (size for n, size in enumerate(sizes) if names[n] not in branches)
        document["branches_spanned"] = len(covered) - len(branches)
        document["over_read_bytes"] = sum(unwanted)
    return document


def _name_branches(baskets: Sequence[Basket]) -> List[str]:
    """Name the branch of each basket, with its tree where there are several."""
    if len({basket.tree for basket in baskets}) == 1:
        return [basket.branch for basket in baskets]
    return [f"{basket.tree}/{basket.branch}" for basket in baskets]


def _sum_baskets(baskets: Sequence[Basket]) -> Dict[str, Any]:
    """Count the baskets that were read, and compute how far they are compressed."""
    zipped = sum(basket.zipped for basket in baskets)
    document: Dict[str, Any] = {"baskets_read": len(baskets)}
    if zipped:
        document["compression"] = sum(basket.unzipped for basket in baskets) / zipped
    return document


def _join_sequential(reads: Sequence[Tuple[int, int]]) -> Iterator[Tuple[int, int]]:
    """Join reads that continue the one before: libraries split what they read into blocks."""
    start = end = -1
    for offset, length in reads:
        if offset != end:
            if end > start:
                yield start, end - start
            start = offset
        end = offset + length
    if end > start:
        yield start, end - start


class _JoinedReads(NamedTuple):
    """Joins of reads with baskets.

    Attributes:
        counts: reads that cover each basket.
        edges: numbers of the baskets at an edge of a read.
        longest: the most baskets of one read.
    """

    counts: List[int]
    edges: Set[int]
    longest: int


def _count_reads(reads: Iterable[Tuple[int, int]], baskets: Sequence[Basket]) -> _JoinedReads:
    starts = [basket.start for basket in baskets]
    counts, edges, longest = [0] * len(baskets), set(), 0
    for offset, length in reads:
        first = number = bisect_left(starts, offset)
        while number < len(baskets) and baskets[number].end <= offset + length:
            counts[number] += 1
            if offset == starts[number] or baskets[number].end == offset + length:
                edges.add(number)
            number += 1
        longest = max(longest, number - first)
    return _JoinedReads(counts, edges, longest)


def _cover(ranges: Ranges, start: int, end: int) -> int:
    """Return the number of bytes of [start, end) within sorted ranges."""
    number = max(0, bisect_left(ranges, (start, 0)) - 1)
    size = 0
    while number < len(ranges) and ranges[number][0] < end:
        size += max(0, min(end, ranges[number][1]) - max(start, ranges[number][0]))
        number += 1
    return size
