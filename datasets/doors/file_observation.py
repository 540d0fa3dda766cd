"""Observations of single files through a door."""

from __future__ import annotations

from dataclasses import dataclass

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
        size: in bytes; None on failure.
        adler32: 8 hex digits; '' where the door reports none.
        sha256: 64 hex digits, '' unless every byte was read.
        failure: '' or one of the words above.
        message: the door's own message.
    """

    size: int | None = None
    adler32: str = ""
    sha256: str = ""
    failure: str = ""
    message: str = ""


def normalize_adler32(text: str) -> str:
    """Normalize an adler32: lower case, with the leading zeros that some servers omit."""
    return text.strip().lower().rjust(8, "0")
