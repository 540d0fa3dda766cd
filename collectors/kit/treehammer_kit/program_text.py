"""Program text of a process in physical pages of its own.

The page cache holds one copy of a library for all processes, in physical pages that stay the same
until they are evicted.  Which sets of a physically indexed cache they share is drawn once, for every
launch of a campaign and of later ones.  A copy in anonymous pages draws anew for each process.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from typing import Dict, Iterable, List, Sequence, Tuple

#: Text of a library above this size stays where it is: that of ROOT's interpreter, which compiled
#: loops do not run.
MAX_LIBRARY_BYTES = 48 << 20

_PROT_READ, _PROT_WRITE, _PROT_EXEC = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC
_MAP_PRIVATE, _MAP_ANONYMOUS = mmap.MAP_PRIVATE, mmap.MAP_ANONYMOUS
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
# A huge page would be contiguous, so that its addresses draw nothing.
_MADV_NOHUGEPAGE = 15
_MAP_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class _Mapping:
    """Memory of a library as the kernel lists it."""

    start: int
    size: int
    protection: int


def list_library_mappings(lines: Iterable[str]) -> List[_Mapping]:
    """List the text and constants of libraries and programs in the lines of ``/proc/PID/maps``."""
    by_path: Dict[str, List[_Mapping]] = {}
    for line in lines:
        fields = line.split(None, 5)
        # Anonymous memory has no path, and with it text that was moved before.
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        addresses, flags, path = fields[0], fields[1], fields[5].rstrip("\n")
        start, end = (int(address, 16) for address in addresses.split("-"))
        if flags in ("r-xp", "r--p"):
            protection = _PROT_READ | (_PROT_EXEC if "x" in flags else 0)
            by_path.setdefault(path, []).append(_Mapping(start, end - start, protection))
    return [
        mapping
        for mappings in by_path.values()
        if _is_small_program(mappings)
        for mapping in mappings
    ]


def _is_small_program(mappings: Sequence[_Mapping]) -> bool:
    has_code = any(mapping.protection & _PROT_EXEC for mapping in mappings)
    return has_code and sum(mapping.size for mapping in mappings) <= MAX_LIBRARY_BYTES


def move_program_text() -> int:
    """Copy the text and constants of all loaded libraries into pages of this process.

    Addresses stay the same: each copy takes the place of its mapping in one system call, so that
    even the code that does this can be moved.

    Returns:
        bytes in own pages; 0 where the node refuses executable memory that no file holds, or is
        no Linux.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
            mappings = list_library_mappings(stream)
        libc = _load_libc()
    except (OSError, AttributeError, ValueError):
        return 0
    return sum(mapping.size for mapping in mappings if _move(libc, mapping))


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    signatures: Tuple[Tuple[str, Tuple[object, ...], object], ...] = (
        ("mmap", (address, size, number, number, number, ctypes.c_long), address),
        ("munmap", (address, size), number),
        ("madvise", (address, size, number), number),
        ("mprotect", (address, size, number), number),
        ("mremap", (address, size, size, number, address), address),
    )
    for name, arguments, result in signatures:
        function = getattr(libc, name)
        function.argtypes, function.restype = arguments, result
    return libc


def _move(libc: ctypes.CDLL, mapping: _Mapping) -> bool:
    size = mapping.size
    copy = libc.mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
    if copy in (None, _MAP_FAILED):
        return False
    libc.madvise(copy, size, _MADV_NOHUGEPAGE)
    ctypes.memmove(copy, mapping.start, size)
    if libc.mprotect(copy, size, mapping.protection) == 0:
        moved = libc.mremap(copy, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, mapping.start)
        if moved == mapping.start:
            return True
    libc.munmap(copy, size)
    return False
