"""Failure classes of HTTP statuses, and of copy programs by their messages."""

from __future__ import annotations

import re
from typing import Mapping, Sequence, Tuple

from .xrootd_client import classify_response

FAILURES_BY_STATUS: Mapping[int, str] = {
    401: "credential",
    403: "not-permitted",
    404: "not-found",
    405: "not-supported",
    408: "timeout",
    410: "not-found",
    416: "wrong-data",
    429: "server-error",
    495: "credential",
    496: "credential",
    501: "not-supported",
    504: "timeout",
    507: "no-space",
}
#: Number of a server's error in messages of XRootD's clients, and of a response in those of curl.
_XROOTD_ERROR = re.compile(r"\[(30\d\d)\]")
_HTTP_STATUS = re.compile(r"returned error: (\d{3})")
#: Messages of xrdcp, curl and the operating system; the first that occurs decides.
_MESSAGES: Sequence[Tuple[str, str]] = (
    ("credential", r"auth failed|certificate|unable to .*credential"),
    ("timeout", r"timed? ?out|operation expired"),
    ("reset", r"reset by peer|broken pipe|stream error|socket error|empty reply|partial file"),
    ("refused", r"refused|couldn't connect|failed to connect|connection error|no route"),
    ("not-found", r"no such file"),
    ("not-permitted", r"permission denied|not permitted|read-only file system"),
    ("no-space", r"no space left|quota exceeded"),
    ("wrong-data", r"checksum"),
)


def classify_status(status: int) -> str:
    """Return the failure class of an HTTP status that is an error."""
    return FAILURES_BY_STATUS.get(status, "server-error" if status >= 500 else "other")


def classify_exit(text: str) -> str:
    """Return the failure class of a program that failed, by its output."""
    numbered = _XROOTD_ERROR.search(text)
    if numbered:
        return classify_response(int(numbered[1]))
    status = _HTTP_STATUS.search(text)
    if status:
        return classify_status(int(status[1]))
    for failure, pattern in _MESSAGES:
        if re.search(pattern, text, re.IGNORECASE):
            return failure
    return "other"
