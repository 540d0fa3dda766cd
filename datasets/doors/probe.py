"""What is asked of a door, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

#: Bytes that are read of a file.
SAMPLE_BYTES = 1024
#: How deep below the prefix, and at how many entries of a folder, a file is looked for.
MAX_SEARCH_DEPTH, MAX_FOLDER_ENTRIES = 3, 20

#: What helps against a refusal.
PERMISSION_HINT = (
    "Check the prefix, and what you show the door: an x509 proxy by X509_USER_PROXY, a token by "
    "BEARER_TOKEN_FILE."
)


@dataclass(frozen=True)
class ProbeTarget:
    """The file to read: its path below the prefix, and its size in bytes.

    With '' any file that a listing shows is read.
    """

    path: str = ""
    size: int = 0

    @property
    def missing_file_hint(self) -> str:
        """What helps where it is not there."""
        if self.path:
            return "Place the dataset there, or correct the prefix of the door."
        return "Correct the prefix of the door, or make the folder."


@dataclass(frozen=True)
class ProbeResult:
    """What came of trying a door.

    Attributes:
        problem: what is wrong, '' when nothing is.
        remedy: what to do about it.
        found: what was done and seen.
        server: what the server calls itself and its version, '' when it does not say.
        rtt_s: the shortest of a few TCP connects in seconds, None where there is none.
        tried: False where nothing could be tried from this machine.
    """

    problem: str = ""
    remedy: str = ""
    details: str = ""
    server: str = ""
    rtt_s: float | None = None
    tried: bool = True

    def with_rtt(self, rtt_s: float) -> ProbeResult:
        """The same with a round trip."""
        return replace(self, rtt_s=rtt_s)


def check_sample(target: ProbeTarget, path: str, content: bytes, size: int) -> ProbeResult:
    """What reading a file's first bytes tells.

    Args:
        target: what was asked for.
        path: of the file that was read, below the prefix.
        content: what was read.
        size: of the whole file in bytes.
    """
    found = f"read {len(content)} bytes of {path}"
    if len(content) < min(SAMPLE_BYTES, size):
        return ProbeResult(
            f"{path}: {len(content)} bytes came instead of {min(SAMPLE_BYTES, size)}", "", found
        )
    if target.path and size != target.size:
        return ProbeResult(
            f"{path} has {size} bytes there, and {target.size} in the dataset",
            "Place the dataset there again.",
            found,
        )
    return ProbeResult(details=found)


NOTHING_TO_READ = "the folder is there and holds no file to read"


def find_first_file(
    entries: Callable[[str], Sequence[tuple[str, bool]]],
    path: str = "",
    depth: int = MAX_SEARCH_DEPTH,
) -> str:
    """Path below the prefix of some file, '' when a short look finds none.

    Args:
        entries: name and whether it is a folder, of each entry of a folder below the prefix.
        path: of the folder to look in, '' for the prefix itself.
        depth: how many folders deep to look.
    """
    listed = sorted(entries(path), key=lambda entry: (entry[0].startswith("."), entry[0]))
    join = f"{path}/" if path else ""
    for name, is_folder in listed[:MAX_FOLDER_ENTRIES]:
        if not is_folder:
            return join + name
        found = find_first_file(entries, join + name, depth - 1) if depth > 1 else ""
        if found:
            return found
    return ""
