"""A door that is a folder."""

from __future__ import annotations

import errno
from pathlib import Path

from treehammer.datasets.content import digest
from treehammer.datasets.doors.probe import (
    NOTHING_TO_READ,
    SAMPLE,
    Probe,
    Target,
    first_file,
    read_sample,
)
from treehammer.datasets.doors.seen import BROKEN, MISSING, REFUSED, Advance, Seen


def stat(path: Path) -> Seen:
    """Size alone: a folder keeps no checksums."""
    try:
        return Seen(path.stat().st_size)
    except OSError as error:
        return _trouble(error)


def read(path: Path, advance: Advance | None = None, copy_to: Path | None = None) -> Seen:
    """Read every byte, and keep them in a new file if one is given."""
    try:
        found = digest(path, advance, copy_to=copy_to)
    except OSError as error:
        return _trouble(error)
    return Seen(found.size, found.adler32, found.sha256)


def _trouble(error: OSError) -> Seen:
    kinds = {errno.ENOENT: MISSING, errno.ENOTDIR: MISSING, errno.EACCES: REFUSED}
    kind = kinds.get(error.errno or 0, BROKEN)
    return Seen(trouble=kind, message=str(error.strerror))


def probe(prefix: str, target: Target, *, here: bool) -> Probe:
    """Look at the folder and read a file in it, where it is one of this machine."""
    root = Path(prefix)
    if not here and not root.is_dir():
        return Probe(found="a folder of the site's nodes cannot be tried from here", tried=False)
    try:
        return _read(root, target)
    except FileNotFoundError as error:
        return Probe(f"there is no {error.filename}", target.missing)
    except OSError as error:
        return Probe(
            f"{error.filename or prefix}: {error.strerror}",
            "Let the user who runs the jobs read it.",
        )


def _read(root: Path, target: Target) -> Probe:
    def entries(path: str) -> list[tuple[str, bool]]:
        return [(item.name, item.is_dir()) for item in (root / path).iterdir()]

    path = target.path or first_file(entries)
    if not path:
        return Probe(found=NOTHING_TO_READ)
    with (root / path).open("rb") as stream:
        content = stream.read(SAMPLE)
    return read_sample(target, path, content, (root / path).stat().st_size)
