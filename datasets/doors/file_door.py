"""Doors that are folders of this machine."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from treehammer.collectors.shared_files import open_regular_file
from treehammer.datasets.doors.observations import (
    FAILED,
    MISSING,
    NOTHING_TO_READ,
    REFUSED,
    SAMPLE_BYTES,
    FileObservation,
    ProbeResult,
    ProbeTarget,
    check_sample,
    find_first_file,
)
from treehammer.datasets.manifest import digest_file
from treehammer.text_formatting import ByteCallback


def probe_server(prefix: str, target: ProbeTarget) -> ProbeResult:
    """Check a folder of this machine and read a file in it."""
    try:
        return _read_sample_file(Path(prefix), target)
    except FileNotFoundError as error:
        return ProbeResult(f"there is no {error.filename}", target.missing_file_hint)
    except OSError as error:
        return ProbeResult(
            f"{error.filename or prefix}: {error.strerror}",
            "Let the user who runs the jobs read it.",
        )


def _read_sample_file(root: Path, target: ProbeTarget) -> ProbeResult:
    def entries(path: str) -> list[tuple[str, bool]]:
        return [(item.name, item.is_dir()) for item in (root / path).iterdir()]

    path = target.path or find_first_file(entries)
    if not path:
        return ProbeResult(details=NOTHING_TO_READ)
    with open_regular_file(root / path, follows_links=True) as stream:
        content = stream.read(SAMPLE_BYTES)
        size = os.fstat(stream.fileno()).st_size
    return check_sample(target, path, content, size)


def stat_file(path: str) -> FileObservation:
    """Get the size of a file; folders provide no checksums."""
    try:
        return FileObservation(Path(path).stat().st_size)
    except OSError as error:
        return _describe_failure(error)


def read_file(
    path: str, _size: int, advance: ByteCallback | None = None, copy_to: Path | None = None
) -> FileObservation:
    """Read a file and its checksums, and copy it to a new file if one is given."""
    try:
        digest = digest_file(Path(path), advance, copy_to=copy_to)
    except OSError as error:
        return _describe_failure(error)
    return FileObservation.from_digest(digest)


def write_file(source: Path, path: str, _advance: ByteCallback | None = None) -> FileObservation:
    """Copy a file to a path, whose folder is made if it is missing."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
    except OSError as error:
        return _describe_failure(error)
    return stat_file(path)


def remove_file(path: str) -> FileObservation:
    """Remove a file."""
    try:
        Path(path).unlink()
    except OSError as error:
        return _describe_failure(error)
    return FileObservation()


def _describe_failure(error: OSError) -> FileObservation:
    kinds = {errno.ENOENT: MISSING, errno.ENOTDIR: MISSING, errno.EACCES: REFUSED}
    return FileObservation(failure=kinds.get(error.errno or 0, FAILED), message=str(error.strerror))
