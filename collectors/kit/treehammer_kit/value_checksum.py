"""The untimed execution that proves that two releases, doors or formats delivered the same values."""

from __future__ import annotations

import ctypes
import hashlib
import json
import zlib
from typing import Any, Dict, List, Tuple

from . import root_engine
from .payload_task import PayloadError, PayloadTask
from .read_passes import get_tree, is_ntuple, open_file

#: Of what is hashed and how; checksums of two versions say nothing about each other.
CHECKSUM_VERSION = 2

_CHUNK = 4 * 1024 * 1024


def compute_checksum(root: Any, task: PayloadTask) -> Dict[str, Any]:
    """Hash every value that can be hashed, of all files in order.

    Covered are leaves of fundamental types with fixed and variable lengths, text, and top-level
    ``std::string`` and ``std::vector`` of numbers or strings.  What is not covered is listed.  A
    TTree and an RNTuple of the same values have the same checksum.

    The bytes of each file come first: what is read must be the dataset's file.  A value of a basket
    that does not compress, and most of what zstd compresses, carries no checksum of its own, so that
    no release notices that it changed; both would agree on the wrong values.

    Raises:
        PayloadError: a file or tree is not there, its bytes are not the manifest's, a read failed, or
            nothing can be covered.
    """
    return compute_value_hashes(root, task)[0]


def compute_value_hashes(root: Any, task: PayloadTask) -> Tuple[Dict[str, Any], List[str]]:
    """What :func:`checksum` returns, and the hash of each leaf as "name kind hash".

    Raises:
        PayloadError: as :func:`checksum`.
    """
    ntuple = False
    sums: Any = None
    values: Dict[str, Any] = {}
    for index, url in enumerate(task.urls):
        reader = open_file(root, url)
        if task.adler32s[index]:
            _check_content(root, reader, url, task.adler32s[index])
        if sums is None:
            ntuple = is_ntuple(reader, task.tree)
            sums = _hash_values(root, ntuple)
        if not ntuple:
            get_tree(reader, url, task.tree)
        if not sums.Read(reader.current.file, task.tree):
            raise PayloadError("read", "entry", "checksum", f"{url}: {sums.message}")
        values.setdefault("file_class", str(reader.file_class))
        values.setdefault("branches_total", int(sums.branches))
        reader.Close()
    lines = [str(line) for line in sums.Lines()] if sums else []
    if not lines:
        raise PayloadError(
            "payload", "checksum", "checksum", f"no leaf of {task.tree!r} can be hashed"
        )
    values.update(
        events_total=int(sums.entries),
        value_checksum=hashlib.sha256("\n".join(lines).encode()).hexdigest(),
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


def _check_content(root: Any, reader: Any, url: str, wanted: str) -> None:
    """Read the whole file through its door and compare its adler32 with the manifest's."""
    size, found = int(reader.file_size), 1
    buffer = ctypes.create_string_buffer(_CHUNK)
    for at in range(0, size, _CHUNK):
        length = min(_CHUNK, size - at)
        address = ctypes.addressof(buffer)
        if not root.treehammer.CopyOut(reader.current.file, at, length, address):
            message = f"{url}: {length} bytes from {at} cannot be read"
            raise PayloadError("read", "content", "checksum", message, transient="://" in url)
        found = zlib.adler32(memoryview(buffer)[:length], found)
    if f"{found:08x}" != wanted.lower():
        raise PayloadError(
            "data-check",
            "content",
            "checksum",
            f"{url} has adler32 {found:08x}, the manifest says {wanted}: its content changed, and "
            "what was measured with it is of other data. Make or place the dataset again.",
        )
