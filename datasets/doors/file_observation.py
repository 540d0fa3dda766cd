"""Observations of single files through a door."""

from __future__ import annotations

from dataclasses import dataclass

from treehammer.datasets.model.file_digest import FileDigest

#: Failures of a door: no such file, access denied, no answer in time, another error, or not
#: reachable from this machine.
MISSING, REFUSED, NO_RESPONSE, FAILED, NOT_TRIED = (
    "missing",
    "refused",
    "no answer",
    "error",
    "not tried",
)


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
