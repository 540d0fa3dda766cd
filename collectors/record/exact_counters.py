"""Counters that are exact: equal reads give equal values, so that one job decides.

Whether a counter is exact depends on how the data is accessed.  A pair is declared only where
recorded A/A jobs show no difference (``python -m benchmarks counters``); everything else is noisy.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

#: Access modes of a TTree: protocol of the door ('file' for a staged copy), with or without a cache.
ACCESS_MODES = FILE, FILE_CACHED, ROOT, ROOT_CACHED = (
    "file",
    "file, cached",
    "root",
    "root, cached",
)

_LOOP = (
    "bytes_read",
    "bytes_read_extra",
    "read_calls",
    "read_calls_single",
    "read_calls_vector",
    "loop_unzipped_bytes",
    "baskets_read",
)
_CACHE = (
    "vector_chunks",
    "cache_bytes_read",
    "cache_read_calls",
    "cache_missed_bytes",
    "cache_missed_calls",
)
_KERNEL = ("kernel_read_chars", "kernel_read_calls")

#: Access mode -> its exact counters.  Kernel counters of a socket depend on how bytes arrive, and
#: bytes fetched from a device on the page cache.
EXACT_COUNTERS: Mapping[str, Tuple[str, ...]] = {
    FILE: (*_LOOP, *_KERNEL),
    FILE_CACHED: (*_LOOP, *_CACHE, *_KERNEL),
    ROOT: _LOOP,
    ROOT_CACHED: (*_LOOP, *_CACHE),
}
#: All counters that are exact in some mode.
COUNTER_NAMES: Tuple[str, ...] = tuple(
    dict.fromkeys(name for names in EXACT_COUNTERS.values() for name in names)
)


def find_access_mode(variant: Mapping[str, Any], door_protocol: str) -> Optional[str]:
    """Find the access mode of a variant at a door; None where nothing is known to be exact.

    Args:
        variant: axes with their values.
        door_protocol: protocol of the door.
    """
    if variant.get("format", "ttree") != "ttree":
        return None
    if variant.get("threads", 1) != 1 or variant.get("prefetch"):  # other threads read as well
        return None
    staged = variant.get("access") == "staged"
    protocol = FILE if staged or door_protocol == "file" else door_protocol
    cached = float(variant.get("cache_mb", 0)) > 0
    mode = f"{protocol}, cached" if cached else protocol
    return mode if mode in ACCESS_MODES else None


def list_exact_modes(name: str) -> Tuple[str, ...]:
    """List the access modes in which a metric is exact."""
    return tuple(mode for mode in ACCESS_MODES if name in EXACT_COUNTERS[mode])
