"""Files in which an XCache counts the reads of a file."""

from __future__ import annotations

import struct
from pathlib import Path

from treehammer.collectors.cache_counts import compute_crc32c


def write_info(
    path: Path,
    stored: list[int],
    *accesses: tuple[int, int, int],
    block: int = 1000,
    detached: int = 7,
) -> None:
    """Write the ``.cinfo`` of a file of 9,500 bytes with stored blocks and accesses (bytes hit, missed, bypassed)."""
    size = 9500
    store = struct.pack("<qqqqqIi", block, size, 5, 0, len(accesses), 2, len(accesses))
    bits = sum(1 << number for number in stored).to_bytes(((size - 1) // block + 8) // 8, "little")
    rows = [struct.pack("<qqiiiiqqq", 6, detached, 1, 1, 0, 0, *counts) for counts in accesses]
    body = bits + b"".join(rows)
    checksums = [struct.pack("<I", compute_crc32c(part)) for part in (store, body)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<i", 4) + store + checksums[0] + body + checksums[1])
