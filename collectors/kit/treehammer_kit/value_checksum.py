"""Untimed checksum of all values, which proves that releases, doors and formats agree."""

from __future__ import annotations

import ctypes
import hashlib
import json
import zlib
from typing import Any, Dict, List, Tuple

from . import root_engine
from .payload_task import PayloadError, PayloadTask
from .read_passes import get_tree, is_ntuple, open_file

#: Version of the algorithm; checksums of different versions cannot be compared.
CHECKSUM_VERSION = 2

_CHUNK = 4 * 1024 * 1024


def compute_checksum(root: Any, task: PayloadTask) -> Dict[str, Any]:
    """Hash every supported value of all files, in order.

    Covered are leaves of fundamental types with fixed and variable lengths, text, and top-level
    ``std::string`` and ``std::vector`` of numbers or strings; others are listed as skipped.  A TTree
    and an RNTuple of the same values have the same checksum.

    The adler32 of each file is checked first.  Uncompressed baskets, and most of those compressed
    with zstd, carry no checksum, so that no release would notice a changed value: all would agree on
    the wrong one.

    Where no leaf is covered, the values were not checked, and there is no checksum.

    Raises:
        PayloadError: a file or tree is missing, its bytes differ from the manifest, or a read failed.
    """
    return compute_value_hashes(root, task)[0]


def compute_value_hashes(root: Any, task: PayloadTask) -> Tuple[Dict[str, Any], List[str]]:
    """Return the values of :func:`compute_checksum`, and each leaf's "name kind hash".

    Raises:
        PayloadError: as :func:`compute_checksum`.
    """
    ntuple = False
    sums: Any = None
    values: Dict[str, Any] = {}
    for index, url in enumerate(task.urls):
        reader = open_file(root, url)
        if task.adler32s[index]:
            _check_content(root, reader, url, task.adler32s[index])
        if sums is None:
            ntuple = is_ntuple(root, reader, task.tree)
            sums = _hash_values(root, ntuple)
            for name in task.missing_branches:
                sums.left_out.push_back(name)
        if not ntuple:
            get_tree(reader, url, task.tree)
        tree = (reader.current.file, task.tree) if ntuple else (reader.current.tree,)
        if not sums.Read(*tree):
            raise PayloadError("read", "entry", "checksum", f"{url}: {sums.message}")
        values.setdefault("file_class", str(reader.file_class))
        values.setdefault("branches_total", int(sums.branches))
        reader.Close()
    lines = [str(line) for line in sums.Lines()] if sums else []
    if lines:
        values["value_checksum"] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    values.update(
        events_total=int(sums.entries),
        checksum_version=CHECKSUM_VERSION,
        checksum_leaves=len(lines),
        checksum_skipped_leaves=json.dumps([str(name) for name in sums.uncovered]),
    )
    return values, lines


def _hash_values(root: Any, ntuple: bool) -> Any:
    if ntuple:
        root_engine.compile_ntuple_header(root, "ntuple_checksum.hpp")
        return root.treehammer.NTupleChecksum()
    root_engine.compile_header(root, "checksum.hpp")
    return root.treehammer.TreeChecksum()


def _check_content(root: Any, reader: Any, url: str, expected: str) -> None:
    """Read the whole file through its door and compare its adler32 with the manifest's."""
    size, adler32 = int(reader.file_size), 1
    buffer = ctypes.create_string_buffer(_CHUNK)
    for offset in range(0, size, _CHUNK):
        length = min(_CHUNK, size - offset)
        address = ctypes.addressof(buffer)
        if not root.treehammer.CopyOut(reader.current.file, offset, length, address):
            message = f"{url}: {length} bytes from {offset} cannot be read"
            raise PayloadError("read", "content", "checksum", message, transient="://" in url)
        adler32 = zlib.adler32(memoryview(buffer)[:length], adler32)
    if f"{adler32:08x}" != expected.lower():
        raise PayloadError(
            "data-check",
            "content",
            "checksum",
            f"{url} has adler32 {adler32:08x}, the manifest says {expected}: its content changed, and "
            "its measurements are of other data. Make or place the dataset again.",
        )
