"""Checksum of the values that uproot reads: that of the C++ reader for the same content.

Each leaf has a running 64-bit hash, fed with the number of values of each entry and the values, as
``values.hpp`` describes.  The hashes of all leaves advance together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Sequence

from ..payload_report import check_adler32, describe_checksum
from ..payload_task import PayloadTask
from .uproot_files import NTupleFile, UprootFile, open_uproot_file

_BLOCK = 4 * 1024 * 1024
_TEXT, _TEXTS = "std::string", "std::vector<std::string>"
#: Types of numbers in an RNTuple -> types of NumPy.
_NUMBERS = {
    "bool": "?",
    "char": "i1",
    "float": "f4",
    "double": "f8",
    **{
        f"std::{sign}int{8 * size}_t": f"{sign or 'i'}{size}"
        for sign in ("", "u")
        for size in (1, 2, 4, 8)
    },
    **{f"ROOT::RNTupleCardinality<std::uint{8 * size}_t>": f"u{size}" for size in (4, 8)},
}
_COLLECTION = re.compile(r"(?:std::vector|std::array|ROOT::VecOps::RVec)<([\w:]+)(?:,\d+)?>")
#: Top-level objects of a TTree that are covered.
_OBJECT = re.compile(r"std::string|std::vector<[\w: ]+>")


@dataclass(frozen=True)
class Leaf:
    """Values that are hashed together.

    Attributes:
        path: column, and members of its records.
        dtype: NumPy's type of its numbers in memory; '' for that of the array.
        uncovered_type: its type, if it is not covered; '' if it is.
    """

    path: Sequence[str]
    dtype: str = ""
    uncovered_type: str = ""

    @property
    def name(self) -> str:
        """Name of the leaf."""
        return ".".join(self.path)


def list_leaves(file: UprootFile) -> Iterator[Leaf]:
    """List the leaves of the columns."""
    for name in file.needed:
        if isinstance(file, NTupleFile):
            yield from _list_field_leaves((name,), file.fields[name])
        else:
            yield from _list_branch_leaves(name, file.tree[name], file.find_type(name))


def _list_field_leaves(path: Sequence[str], field: Any) -> Iterator[Leaf]:
    type_name = str(field.typename)
    if type_name in (_TEXT, _TEXTS):
        yield Leaf(path)
        return
    match = _COLLECTION.fullmatch(type_name)
    element = match[1] if match else type_name
    if element in _NUMBERS:
        yield Leaf(path, _NUMBERS[element])
    elif type_name or not field.fields:
        yield Leaf(path, uncovered_type=type_name or "untyped")
    else:  # an untyped record, the counterpart of a branch with several leaves
        for member in field.fields:
            yield from _list_field_leaves((*path, str(member.name)), member)


def _list_branch_leaves(name: str, branch: Any, type_name: str) -> Iterator[Leaf]:
    is_plain = branch.classname == "TBranch"
    if branch.branches or not (is_plain or _OBJECT.fullmatch(type_name)) or "unknown" in type_name:
        yield Leaf((name,), uncovered_type=type_name)
        return
    members = [str(leaf.member("fName")) for leaf in branch.member("fLeaves")]
    if is_plain and len(members) > 1:
        for member in members:
            yield Leaf((name, member))
    else:
        yield Leaf((name,))


class Tokens:
    """Numbers to feed for consecutive entries.

    Attributes:
        values: the numbers as unsigned integers of 64 bits.
        sizes: how many of them each entry has.
        kind: kind of the leaf's values.
    """

    def __init__(self, values: Any, sizes: Any, kind: str) -> None:
        self.values = values
        self.sizes = sizes
        self.kind = kind

    def with_counts(self, counts: Any) -> Tokens:
        """Group so many entries each to one, which begins with their number."""
        import numpy

        ends = numpy.cumsum(counts)
        totals = numpy.concatenate(([0], numpy.cumsum(self.sizes)))
        starts = totals[ends - counts]
        heads = starts + numpy.arange(len(counts))
        values = numpy.empty(len(self.values) + len(counts), numpy.uint64)
        is_value = numpy.ones(len(values), bool)
        is_value[heads] = False
        values[heads] = counts
        values[is_value] = self.values
        return Tokens(values, totals[ends] - starts + 1, self.kind)


def encode_numbers(values: Any) -> Tokens:
    """Encode integers by value, and floating-point numbers by their bits."""
    import numpy

    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "f":
        bits = numpy.ascontiguousarray(values).view(f"u{size}").astype(numpy.uint64)
    else:
        bits = values.astype(numpy.int64 if kind == "i" else numpy.uint64).view(numpy.uint64)
    name = {"f4": "float", "f8": "double"}.get(f"{kind}{size}", "integer")
    return Tokens(bits, numpy.ones(len(bits), numpy.int64), name)


def encode_entries(array: Any, dtype: str = "") -> Tokens:
    """Encode one number, an array, a collection, a text or texts for each entry.

    Args:
        dtype: NumPy's type of the numbers in memory, if not that of the array.
    """
    import awkward
    import numpy

    parameters = awkward.parameters(array)
    if parameters.get("__array__") in ("string", "bytestring"):
        lengths = awkward.num(awkward.without_parameters(array), axis=1)
        letters = awkward.flatten(awkward.without_parameters(array), axis=1)
        tokens = encode_numbers(awkward.to_numpy(letters).view("i1"))
        tokens.kind = "text"
        return tokens.with_counts(awkward.to_numpy(lengths))
    if array.ndim == 1 or isinstance(array.type.content, awkward.types.RegularType):
        values = awkward.to_numpy(array)
        counts = numpy.ones(len(values), numpy.int64)
    else:
        counts = awkward.to_numpy(awkward.num(array, axis=1))
        items = awkward.flatten(array, axis=1)
        if awkward.parameters(items).get("__array__") in ("string", "bytestring"):
            return encode_entries(items).with_counts(counts)
        values = awkward.to_numpy(items)
    counts = counts * numpy.prod(values.shape[1:], dtype=numpy.int64)  # of arrays in arrays
    values = values.ravel()
    return encode_numbers(values.astype(dtype) if dtype else values).with_counts(counts)


class RunningHashes:
    """Hashes of leaves by "name kind", which continue across steps and files."""

    def __init__(self) -> None:
        self._hashes: Dict[str, int] = {}

    def feed(self, leaves: Dict[str, Tokens]) -> None:
        """Feed the numbers of some entries of all leaves."""
        import numpy

        names = sorted(leaves, key=lambda name: -len(leaves[name].values))
        keys = [f"{name} {leaves[name].kind}" for name in names]
        hashes = numpy.array([self._hashes.get(key, 0) for key in keys], numpy.uint64)
        columns = [leaves[name].values for name in names]
        position = 0
        for count in range(len(columns), 0, -1):  # the leaves that are not at their end
            end = len(columns[count - 1])
            if end > position:
                rows = numpy.stack([column[position:end] for column in columns[:count]], axis=1)
                hashes[:count] = _advance(hashes[:count], rows)
                position = end
        self._hashes.update(zip(keys, map(int, hashes)))  # noqa: B905 - Python 3.9

    def list_lines(self) -> List[str]:
        """List "name kind hash" of every leaf in alphabetical order."""
        return sorted(
            f"{name} {value:016x}".replace(".", "_") for name, value in self._hashes.items()
        )


def _advance(hashes: Any, rows: Any) -> Any:
    """Feed one row of numbers after the other; each is ``Feed`` of ``values.hpp`` for all leaves."""
    import numpy

    golden = numpy.uint64(0x9E3779B97F4A7C15)
    first, second = numpy.uint64(0xBF58476D1CE4E5B9), numpy.uint64(0x94D049BB133111EB)
    shifts = [numpy.uint64(bits) for bits in (30, 27, 31)]
    hashes = hashes.copy()
    other = numpy.empty_like(hashes)
    for row in rows:
        hashes ^= row
        hashes += golden
        for shift, factor in ((shifts[0], first), (shifts[1], second), (shifts[2], None)):
            numpy.right_shift(hashes, shift, out=other)
            hashes ^= other
            if factor is not None:
                hashes *= factor
        hashes += golden
    return hashes


def compute_uproot_checksum(uproot: Any, task: PayloadTask) -> Dict[str, Any]:
    """Hash every supported value of all files, in order, as the C++ reader does.

    Raises:
        PayloadError: a file or tree is missing, or its bytes differ from the manifest.
    """
    hashes, entries, columns = RunningHashes(), 0, 0
    uncovered: List[str] = []
    values: Dict[str, Any] = {}
    for url, adler32 in zip(task.urls, task.adler32s):  # noqa: B905 - Python 3.9
        file = open_uproot_file(uproot, replace(task, branches=1.0), None, url)
        if adler32:
            check_adler32(url, _read_blocks(file), adler32)
        columns = len(file.needed)
        leaves = list(list_leaves(file))
        uncovered = [
            f"{leaf.name} ({leaf.uncovered_type})" for leaf in leaves if leaf.uncovered_type
        ]
        leaves = [leaf for leaf in leaves if not leaf.uncovered_type]
        file.needed = list(dict.fromkeys(leaf.path[0] for leaf in leaves))
        file.check()
        for events in file.iterate("checksum") if leaves else ():
            hashes.feed(_encode_leaves(events, leaves))
        entries += file.entries
        values.setdefault("file_class", file.survey().file_class)
        file.close({})
    values["branches_total"] = columns
    values.update(describe_checksum(hashes.list_lines(), entries, uncovered))
    return values


def _encode_leaves(events: Any, leaves: Sequence[Leaf]) -> Dict[str, Any]:
    """Encode the values of each leaf in a step of events: name -> tokens."""
    tokens = {}
    for leaf in leaves:
        array = events
        for name in leaf.path:
            array = array[name]
        tokens[leaf.name] = encode_entries(array, leaf.dtype)
    return tokens


def _read_blocks(file: UprootFile) -> Iterator[Any]:
    """Read the whole file through its door."""
    source = file.source
    for offset in range(0, source.num_bytes, _BLOCK):
        yield bytes(source.chunk(offset, min(source.num_bytes, offset + _BLOCK)).raw_data)
