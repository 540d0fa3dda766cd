"""Failure classes of copy programs, from their messages."""

from __future__ import annotations

import re
from typing import Sequence, Tuple

from .http_client import classify_status as classify_http_status
from .xrootd_client import classify_response

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


def classify_exit(text: str) -> str:
    """Return the failure class of a program that failed, by its output."""
    numbered = _XROOTD_ERROR.search(text)
    if numbered:
        return classify_response(int(numbered[1]))
    status = _HTTP_STATUS.search(text)
    if status:
        return classify_http_status(int(status[1]))
    for failure, pattern in _MESSAGES:
        if re.search(pattern, text, re.IGNORECASE):
            return failure
    return "other"
