"""Page cache of the node: eviction, warming, and the cached share of files.

Nothing here needs root.  The state is "unknown" for remote files, for files that the kernel does not let
this user inspect, and for files that would not leave the cache.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from ...job_spec import InputFile
from ...process_stats import PAGE_SIZE, read_io
from ...shared_files import local_path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_PROT_READ, _MAP_SHARED = 1, 1
_MAP_FAILED = ctypes.c_void_p(-1).value
_MINCORE_WINDOW = 1 << 30

#: Fraction of a file that may stay cached after an eviction (pages in use by other processes).
MAX_CACHED_AFTER_EVICTION = 0.02


@dataclass(frozen=True)
class PageCacheState:
    """State of the client's page cache before the first pass, and the method that led to it."""

    state: str
    method: str
    fraction: Optional[float]


def prepare_page_cache(files: Sequence[InputFile], request: str) -> PageCacheState:
    """Evict the files (``cold``), read them through (``warm``), or leave them as they are."""
    paths = [path for path in (local_path(file.url) for file in files) if path is not None]
    if not files:
        return PageCacheState("unknown", "no input file", None)
    if len(paths) < len(files):
        return PageCacheState("unknown", "remote file: not in the node's page cache", None)
    if request == "cold":
        for path in paths:
            _evict_file(path)
        proved = _refetches_evicted_page(paths[0])
        _evict_file(paths[0])
        return _classify_eviction(cached_fraction(paths), proved)
    if request == "warm":
        for path in paths:
            _read_through(path)
        return PageCacheState(
            "warmed", "read through once before the payload", cached_fraction(paths)
        )
    return PageCacheState("unknown", "not changed", cached_fraction(paths))


def evict_between_turns(paths: Sequence[str]) -> None:
    """Drop files that were evicted before and are only read since: nothing is left to write."""
    for path in paths:
        _evict_file(path, syncs=False)


def _classify_eviction(fraction: Optional[float], proved: bool) -> PageCacheState:
    if fraction is None:
        return PageCacheState("unknown", "posix_fadvise(DONTNEED); mincore is not permitted", None)
    if fraction > MAX_CACHED_AFTER_EVICTION:
        method = f"posix_fadvise(DONTNEED) left {fraction:.0%} in the cache"
        return PageCacheState("unknown", method, fraction)
    if not proved:
        method = "posix_fadvise(DONTNEED), but reading a page again caused no device read"
        return PageCacheState("unknown", method, fraction)
    method = "fsync and posix_fadvise(DONTNEED), verified by mincore and by reading a page again"
    return PageCacheState("evicted", method, fraction)


def _evict_file(path: str, *, syncs: bool = True) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        if syncs:
            os.fsync(fd)  # dirty pages cannot be dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _refetches_evicted_page(path: str) -> bool:
    """Return whether reading an evicted page makes the kernel count a fetch from a device.

    File systems with a cache of their own, or without counters (many in user space), do not:
    nothing proves there that an execution was cold.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no page but this one
        before = read_io(os.getpid())
        os.pread(fd, PAGE_SIZE, os.fstat(fd).st_size // 2)
        after = read_io(os.getpid())
    finally:
        os.close(fd)
    return bool(before and after) and after["read_bytes"] > before["read_bytes"]


def _read_through(path: str) -> None:
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def cached_fraction(paths: Sequence[str]) -> Optional[float]:
    """Return the fraction of the files' pages that are in the page cache; None when unknown."""
    counts = [_count_cached_pages(path) for path in paths]
    known_counts = [count for count in counts if count is not None]
    total = sum(pages for _, pages in known_counts)
    if len(known_counts) < len(counts) or not total:
        return None
    return sum(cached for cached, _ in known_counts) / total


def _count_cached_pages(path: str) -> Optional[Tuple[int, int]]:
    """Count the cached pages and all pages of a file; None when the kernel does not show them.

    Since Linux 5.2 mincore reports every page of a foreign file that is not writable as cached.
    """
    try:
        if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
            return None
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        cached = pages = 0
        for offset in range(0, size, _MINCORE_WINDOW):
            flags = _mincore(fd, offset, min(_MINCORE_WINDOW, size - offset))
            if flags is None:
                return None
            # Only the lowest bit has a meaning.
            cached += sum(flag & 1 for flag in flags)
            pages += len(flags)
        return cached, pages
    finally:
        os.close(fd)


def _mincore(fd: int, offset: int, length: int) -> Optional[bytes]:
    address = _LIBC.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, offset)
    if address == _MAP_FAILED:
        return None
    try:
        flags = ctypes.create_string_buffer(-(-length // PAGE_SIZE))
        return flags.raw if _LIBC.mincore(address, length, flags) == 0 else None
    finally:
        _LIBC.munmap(address, length)
