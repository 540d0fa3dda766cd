"""What a door tells of one file, or gives of it."""

from __future__ import annotations

from dataclasses import dataclass

#: What a door may do other than tell: it has no such file, it does not let us, it does not answer (in
#: time), it fails at it, or it cannot be asked from here.
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
        size: in bytes; None where ``trouble`` is not ''.
        adler32: 8 hex digits; '' where the door does not tell one.
        sha256: 64 hex digits, '' unless every byte was read.
        trouble: '' or one of the words above.
        message: what the door said to that.
    """

    size: int | None = None
    adler32: str = ""
    sha256: str = ""
    failure: str = ""
    message: str = ""


def normalize_adler32(text: str) -> str:
    """An adler32 as servers write it, with the zeros that some leave out in front."""
    return text.strip().lower().rjust(8, "0")
