"""Observations through a door: single files, and the result of probing the door itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from treehammer.datasets.manifest import FileDigest

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
    "BEARER_TOKEN_FILE, S3 keys in AWS_SHARED_CREDENTIALS_FILE."
)
#: Remedy for a server that has too many requests, or no time for them.
OVERLOAD_HINT = (
    "The server is overloaded or in maintenance: try again later, with fewer requests at once."
)
NOTHING_TO_READ = f"the folder is there and holds no file in its first {MAX_SEARCH_DEPTH} levels"


@dataclass(frozen=True)
class FileObservation:
    """A file as seen through a door.

    Attributes:
        size: Bytes; None on failure.
        adler32: 8 hex digits; '' if the door reports none.
        sha256: 64 hex digits; '' unless every byte was read or the door reports it.
        failure: '' or one of the constants above.
        message: Message of the door.
        remedy: Remedy for the failure; '' for the usual one of what was tried.
    """

    size: int | None = None
    adler32: str = ""
    sha256: str = ""
    failure: str = ""
    message: str = ""
    remedy: str = ""

    @property
    def explanation(self) -> str:
        """The message, with the remedy if there is one."""
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    @classmethod
    def from_digest(cls, digest: FileDigest) -> FileObservation:
        """Return the observation of a file that was read in full."""
        return cls(digest.size, digest.adler32, digest.sha256)


def read_blocks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Read blocks from an offset to the end of a file, or until it is longer than ``size``."""
    offset = 0
    while offset <= size and (block := read(offset)):
        yield block
        offset += len(block)


def normalize_adler32(text: str) -> str:
    """Convert an adler32 to lower case and restore omitted leading zeros."""
    return text.strip().lower().rjust(8, "0")


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


def check_sample(target: ProbeTarget, path: str, content: bytes, size: int | None) -> ProbeResult:
    """Check the first bytes of a file.

    Args:
        target: Requested file.
        path: Path below the prefix of the file that was read.
        content: Bytes read.
        size: Size of the whole file in bytes; None if the door does not state it.
    """
    path = path.encode(errors="surrogateescape").decode(errors="replace")
    details = f"read {len(content)} bytes of {path}"
    if size is None:
        details += " (the door does not state its size)"
    expected = min(SAMPLE_BYTES, target.size if size is None else size)
    if len(content) < expected:
        problem = f"{path}: {len(content)} bytes received instead of {expected}"
        return ProbeResult(problem, "Look into the server's log.", details)
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
    # Folders may be many, deep, or closed to this user; hidden entries come last.
    sorted_entries = sorted(entries(path), key=lambda entry: (entry[0][:1] == ".", *entry[::-1]))
    join = f"{path}/" if path else ""
    for name, is_folder in sorted_entries[:MAX_FOLDER_ENTRIES]:
        if not is_folder:
            return join + name
        inner_path = find_first_file(entries, join + name, depth - 1) if depth > 1 else ""
        if inner_path:
            return inner_path
    return ""
