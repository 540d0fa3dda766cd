"""Files behind the doors of a testbed's storages, and damage to them."""

from __future__ import annotations

import os
from pathlib import Path

from treehammer.testbed.components.xrootd_storage import storage_folder
from treehammer.testbed.workspace import Workspace

#: Bytes in the middle of a file that :func:`corrupt_file` changes.
DAMAGED_BYTES = 4096


def path_behind_url(box: Workspace, site: str, url: str) -> Path:
    """Return the path on a site's disk of a URL, such as a PFN from Rucio."""
    path = url.split("://", 1)[1].partition("/")[2]
    return storage_folder(box, site) / path.lstrip("/")


def corrupt_file(path: Path) -> None:
    """Change bytes in the middle of a replica; keep size and modification time."""
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(max(0, before.st_size // 2 - DAMAGED_BYTES // 2))
        offset = stream.tell()
        content = stream.read(DAMAGED_BYTES)
        stream.seek(offset)
        stream.write(bytes(byte ^ 0xFF for byte in content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
