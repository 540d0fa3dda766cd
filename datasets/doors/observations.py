"""Observations through a door: single files, and the result of probing the door itself.

Doors that are folders are observed here, too.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treehammer.collectors.shared_files import open_regular_file
from treehammer.datasets.manifest import FileDigest, digest_file
from treehammer.text_formatting import ByteCallback

#: Failures of a door: no such file, access denied, no answer in time, another error, or not
#: reachable from this machine.
MISSING, REFUSED, NO_RESPONSE, FAILED, NOT_TRIED = (
    "missing",
    "refused",
    "no answer",
    "error",
    "not tried",
)
#: Bytes read from the sample file.
SAMPLE_BYTES = 1024
#: Depth below the prefix, and entries per folder, of the search for a file.
MAX_SEARCH_DEPTH, MAX_FOLDER_ENTRIES = 3, 20
#: Remedy for denied access.
PERMISSION_HINT = (
    "Check the prefix and your credentials: an x509 proxy in X509_USER_PROXY, a token in "
    "BEARER_TOKEN_FILE."
)
NOTHING_TO_READ = "the folder is there and holds no file to read"


# --- files


@dataclass(frozen=True)
class FileObservation:
    """A file as seen through a door.

    Attributes:
        size: Bytes; None on failure.
        adler32: 8 hex digits; '' if the door reports none.
        sha256: 64 hex digits; '' unless every byte was read or the door reports it.
        failure: '' or one of the constants above.
        message: Message of the door.
    """

    size: int | None = None
    adler32: str = ""
    sha256: str = ""
    failure: str = ""
    message: str = ""

    @classmethod
    def from_digest(cls, digest: FileDigest) -> FileObservation:
        """Return the observation of a file that was read in full."""
        return cls(digest.size, digest.adler32, digest.sha256)


def normalize_adler32(text: str) -> str:
    """Convert an adler32 to lower case and restore omitted leading zeros."""
    return text.strip().lower().rjust(8, "0")


# --- probes


@dataclass(frozen=True)
class ProbeTarget:
    """File to read: its path below the prefix, and its size in bytes.

    With an empty path, the first file of a listing is read.
    """

    path: str = ""
    size: int = 0

    @property
    def missing_file_hint(self) -> str:
        """Build the remedy for a missing file."""
        if self.path:
            return "Place the dataset there, or correct the prefix of the door."
        return "Correct the prefix of the door, or make or place a dataset there."


@dataclass(frozen=True)
class ProbeResult:
    """Result of probing a door.

    Attributes:
        problem: Description of the problem; '' without any.
        remedy: Remedy for the problem.
        details: Actions and observations.
        server: Name and version of the server; '' if unknown.
        rtt_s: Shortest of a few TCP connects in seconds; None without a connection.
        tried: False if this machine cannot reach the door.
    """

    problem: str = ""
    remedy: str = ""
    details: str = ""
    server: str = ""
    rtt_s: float | None = None
    tried: bool = True

    def with_rtt(self, rtt_s: float) -> ProbeResult:
        """Copy the result with a round-trip time."""
        return replace(self, rtt_s=rtt_s)


def check_sample(target: ProbeTarget, path: str, content: bytes, size: int | None) -> ProbeResult:
    """Check the first bytes of a file.

    Args:
        target: Requested file.
        path: Path below the prefix of the file that was read.
        content: Bytes read.
        size: Size of the whole file in bytes; None if the door does not state it.
    """
    details = f"read {len(content)} bytes of {path}"
    if size is None:
        details += " (the door does not state its size)"
    expected = min(SAMPLE_BYTES, target.size if size is None else size)
    if len(content) < expected:
        return ProbeResult(
            f"{path}: {len(content)} bytes received instead of {expected}", "", details
        )
    if target.path and size not in (None, target.size):
        return ProbeResult(
            f"{path} has {size} bytes there, and {target.size} in the dataset",
            "Place the dataset there again.",
            details,
        )
    return ProbeResult(details=details)


def find_first_file(
    entries: Callable[[str], Sequence[tuple[str, bool]]],
    path: str = "",
    depth: int = MAX_SEARCH_DEPTH,
) -> str:
    """Find a file by a short search; returns its path below the prefix, '' without any.

    Args:
        entries: Function that lists a folder below the prefix: each name, and whether it is a folder.
        path: Folder to search; '' for the prefix itself.
        depth: Number of folder levels to search.
    """
    sorted_entries = sorted(entries(path), key=lambda entry: (entry[0].startswith("."), entry[0]))
    join = f"{path}/" if path else ""
    for name, is_folder in sorted_entries[:MAX_FOLDER_ENTRIES]:
        if not is_folder:
            return join + name
        inner_path = find_first_file(entries, join + name, depth - 1) if depth > 1 else ""
        if inner_path:
            return inner_path
    return ""


# --- folders as doors


def probe_folder(prefix: str, target: ProbeTarget, *, is_local: bool) -> ProbeResult:
    """Check a folder of this machine and read a file in it."""
    root = Path(prefix)
    if not is_local and not root.is_dir():
        return ProbeResult(
            details="a folder of the site's nodes cannot be tried from here", tried=False
        )
    try:
        return _read_sample_file(root, target)
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


def stat_local_file(path: Path) -> FileObservation:
    """Get the size of a file; folders provide no checksums."""
    try:
        return FileObservation(path.stat().st_size)
    except OSError as error:
        return _describe_failure(error)


def read_local_file(
    path: Path, advance: ByteCallback | None = None, copy_to: Path | None = None
) -> FileObservation:
    """Read a file and its checksums, and copy it to a new file if one is given."""
    try:
        digest = digest_file(path, advance, copy_to=copy_to)
    except OSError as error:
        return _describe_failure(error)
    return FileObservation.from_digest(digest)


def write_local_file(source: Path, path: Path) -> FileObservation:
    """Copy a file to a path, whose folder is made if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
    except OSError as error:
        return _describe_failure(error)
    return stat_local_file(path)


def remove_local_file(path: Path) -> FileObservation:
    """Remove a file."""
    try:
        path.unlink()
    except OSError as error:
        return _describe_failure(error)
    return FileObservation()


def _describe_failure(error: OSError) -> FileObservation:
    kinds = {errno.ENOENT: MISSING, errno.ENOTDIR: MISSING, errno.EACCES: REFUSED}
    kind = kinds.get(error.errno or 0, FAILED)
    return FileObservation(failure=kind, message=str(error.strerror))
