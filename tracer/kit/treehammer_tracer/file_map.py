"""Map of a ROOT file: its baskets and pages by offset, joined with the reads of a command.

A TTree's baskets are records of their own with the names of branch and tree, so that a walk over all
records finds them without ROOT (as ``TFile::Map`` does). The pages of an RNTuple are in its page lists,
the baskets of trees or branches of one name in several places have equal names, and through a door a walk
would take a request for each record: ``root_map.py`` lists these files, by the command's Python, after its
run.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
from bisect import bisect_left
from dataclasses import dataclass
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Sequence,
    Set,
    Tuple,
    Union,
)

from .file_reads import FileReads, Ranges, merge_ranges
from .process_tree import Command
from .root_map import NO_LIBRARY, RECORD_HEAD

#: Names of branches that a record lists.
MAX_BRANCHES = 500
_MAGIC = b"root"
_BASKET = b"TBasket"
_NTUPLE = b"ROOT::RNTuple"
_TREES = (b"TTree", b"TNtuple", b"TNtupleD")
#: Version of a record from which on its offsets have 64 bits.
_LARGE_VERSION = 1000
#: Offsets of a record and of its folder.
_OFFSETS, _LARGE_OFFSETS = struct.Struct(">ii"), struct.Struct(">qq")
_ROOT_MAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "root_map.py")
#: Deadline for the lists of all files of a command.
_TIMEOUT_S = 180


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


def map_baskets(path: str) -> Tuple[List[Basket], bool]:
    """List the baskets of all TTrees of a local file; return whether its records do not suffice.

    They do not for an RNTuple, trees or branches of one name in several places, and behind a gap of uproot's.

    Raises:
        MapError: the file cannot be read.
    """
    try:
        with (
            open(path, "rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _walk_records(content)
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise MapError(f"its records cannot be read: {error}") from error


def list_with_root(paths: Sequence[str], command: Command) -> List[Union[List[Basket], str]]:
    """List the baskets and pages of files and URLs, or the reason why there are none."""
    reason = (
        "its baskets and pages are listed by ROOT, or without a door by uproot: the command's Python "
        "has neither"
    )
    for python in _list_pythons(command):
        try:
            done = subprocess.run(
                [python, _ROOT_MAP],
                check=False,
                env=dict(command.environment),
                input="\n".join(paths),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return [f"its baskets and pages cannot be listed: {error}"] * len(paths)
        if done.returncode != NO_LIBRARY:
            reason = f"the process that lists its baskets and pages ended with {done.returncode}"
            answers = [json.loads(line) for line in done.stdout.splitlines()]
            lists = [[Basket(*row) for row in a] if isinstance(a, list) else a for a in answers]
            return lists + [reason] * (len(paths) - len(lists))
    return [reason] * len(paths)


def _list_pythons(command: Command) -> List[str]:
    """List the programs of Python to try, the command's own first if it is one."""
    names = ["python3", "python", sys.executable]
    if os.path.basename(command.words[0]).startswith("python"):
        names.insert(0, command.words[0])
    paths = [shutil.which(name, path=command.environment.get("PATH")) for name in names]
    return [*dict.fromkeys(path for path in paths if path)]


def _walk_records(content: mmap.mmap) -> Tuple[List[Basket], bool]:
    version, position = struct.unpack_from(">ii", content, 4)
    (end,) = struct.unpack_from(">q" if version >= 1_000_000 else ">i", content, 12)
    end = min(end, len(content))
    baskets: List[Basket] = []
    is_incomplete = False
    places: Dict[Tuple[Union[bytes, int], ...], int] = {}
    while position < end:
        size, key_version, unzipped, _, header, number = RECORD_HEAD.unpack_from(content, position)
        if size < 0:  # a gap, which a deleted object left
            position -= size
            continue
        offsets = _LARGE_OFFSETS if key_version > _LARGE_VERSION else _OFFSETS
        seek, folder = offsets.unpack_from(content, position + RECORD_HEAD.size)
        if seek != position or size < header:  # a gap of uproot, which does not mark it, or damage
            return baskets, True
        kind, names = _read_name(content, position + RECORD_HEAD.size + offsets.size)
        is_incomplete |= kind == _NTUPLE
        if kind in _TREES:
            is_incomplete |= places.setdefault(_read_name(content, names)[:1], folder) != folder
        if kind == _BASKET:
            branch, names = _read_name(content, names)
            tree, _ = _read_name(content, names)
            is_incomplete |= places.setdefault((tree, branch, number), position) != position
            end_of_record = position + size
            texts = (text.decode("utf-8", "replace") for text in (tree, branch))
            baskets.append(Basket(position, end_of_record, header, unzipped, *texts))
        position += size
    return baskets, is_incomplete or position != end


def _read_name(content: mmap.mmap, position: int) -> Tuple[bytes, int]:
    """Read a text that its length precedes; return it and the offset behind it."""
    length = content[position]
    position += 1
    if length == 255:
        (length,) = struct.unpack_from(">i", content, position)
        position += 4
    return content[position : position + length], position + length


def map_files(files: Sequence[FileReads], command: Command) -> Dict[str, Dict[str, Any]]:
    """Return what the maps of ROOT files say of a command's reads by path, for their records."""
    maps: Dict[str, Union[List[Basket], str]] = {}
    unlisted: List[str] = []
    root_files = [*filter(_is_root_file, files)]
    for file in root_files:
        path = file.path
        try:
            if file.touched is None:
                raise MapError("not every read of it is recorded")
            if not _is_url(file) and file.size not in (None, os.path.getsize(path)):
                raise MapError("it changed during the run")
            maps[path], needs_root = ([], True) if _is_url(file) else map_baskets(path)
        except (MapError, OSError) as error:
            maps[path] = str(error)
            continue
        if needs_root:
            unlisted.append(path)
    if unlisted:
        lists = list_with_root(unlisted, command)
        for path, rows in zip(unlisted, lists):  # noqa: B905 - Python 3.9 knows no strict
            maps[path] = rows if isinstance(rows, str) else [*maps[path], *rows]
    return {file.path: _describe_map(file, maps[file.path]) for file in root_files}


def _describe_map(file: FileReads, baskets: Union[List[Basket], str]) -> Dict[str, Any]:
    baskets = baskets or "it holds no baskets of a TTree and no pages of an RNTuple"
    if isinstance(baskets, str):
        return {"map_missing": baskets}
    # Pages that several columns share, and baskets that ROOT lists as well, count once.
    by_start = {basket.start: basket for basket in baskets}
    return {"map": join_reads(file, [by_start[start] for start in sorted(by_start)])}


def _is_url(file: FileReads) -> bool:
    return "://" in file.path


def _is_root_file(file: FileReads) -> bool:
    """Return whether a file was read that is ROOT's; behind a door, or gone, by its name alone."""
    if not file.calls or file.is_connection:
        return False
    if _is_url(file):
        return ".root" in os.path.basename(file.path)
    try:
        with open(file.path, "rb") as stream:
            return stream.read(4) == _MAGIC
    except OSError:
        return file.path.endswith(".root")


def join_reads(file: FileReads, baskets: Sequence[Basket]) -> Dict[str, Any]:
    """Join the reads of a file with its baskets; what is not known is left out.

    A read that covers several baskets may have been made for some of them alone: ROOT fills the gaps
    between wanted blocks up to 256 kB, uproot up to 32 kB. The recorder knows the wanted blocks of
    ROOT's vector reads, which join adjacent baskets and no others. Of other reads, those baskets at an
    edge were wanted, and further ones perhaps: the number of branches is then a range, and what was
    over-read is not known. Where all baskets are covered, as by a copy, all were read.
    """
    ranges = merge_ranges(file.list_reads())
    names = _name_branches(baskets)
    sizes = [_cover(ranges, basket.start, basket.end) for basket in baskets]
    fetched = _find_fetched(ranges, baskets)
    covered, branches, is_exact = _find_branches(file, baskets, names, fetched)
    reads = _join_sequential(file.list_reads())
    document: Dict[str, Any] = {
        "branches": len(set(names)),
        "branches_read": len(branches),
        "branches_most": len(covered),
        "names": [*branches][:MAX_BRANCHES],
        "baskets_repeated": sum(count > 1 for count in _count_reads(reads, baskets).counts),
    }
    document.update(_sum_baskets([baskets[n] for n in fetched if names[n] in branches]))
    if is_exact:
        unwanted = (size for n, size in enumerate(sizes) if names[n] not in branches)
        document["branches_most"] = len(branches)
        document["branches_spanned"] = len(covered) - len(branches)
        document["over_read_bytes"] = sum(unwanted)
    return document


def _find_fetched(ranges: Ranges, baskets: Sequence[Basket]) -> List[int]:
    """Find the baskets whose content was read as a whole; return their numbers."""
    return [
        number
        for number, basket in enumerate(baskets)
        if _cover(ranges, basket.start + basket.header, basket.end) == basket.zipped
    ]


def _find_branches(
    file: FileReads, baskets: Sequence[Basket], names: Sequence[str], fetched: Sequence[int]
) -> Tuple[Dict[str, None], Dict[str, None], bool]:
    """Find the covered branches and those certainly wanted; return both, and whether these are all."""
    covered = dict.fromkeys(names[number] for number in fetched)
    if len(fetched) == len(baskets):
        return covered, covered, True
    numbers, is_exact = _find_wanted(file, baskets)
    wanted_names = {names[number] for number in numbers}
    branches = dict.fromkeys(branch for branch in covered if branch in wanted_names)
    return covered, branches, is_exact or len(branches) == len(covered)


def _find_wanted(file: FileReads, baskets: Sequence[Basket]) -> Tuple[Set[int], bool]:
    """Find the baskets that were certainly wanted; return their numbers, and whether these are all."""
    blocks = _count_reads(file.wanted, baskets)
    single_reads = [
        read for number, read in enumerate(file.list_reads()) if number not in file.vector_reads
    ]
    joins = _count_reads(_join_sequential(single_reads), baskets)
    inside_blocks = {number for number, count in enumerate(blocks.counts) if count}
    return inside_blocks | joins.edges, joins.longest <= 1


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
