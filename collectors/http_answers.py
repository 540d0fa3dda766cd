"""Checks of HTTP answers: lengths, parts of files, checksums.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional

from .http_requests import HttpAnswerError

#: Hexadecimal digits of each checksum.
_DIGITS = {"adler32": 8, "md5": 32, "sha-256": 64}
#: Names of checksums beside those of RFC 3230 and RFC 9530.
_DIGEST_ALIASES = {"adler": "adler32", "sha256": "sha-256"}


class RangeAnswerError(HttpAnswerError):
    """An answer without the requested range."""


def read_length(headers: Any) -> Optional[int]:
    """Return the length of an answer's body, or None if it states none."""
    text = (headers.get("Content-Length") or "").strip()
    return int(text) if text.isdecimal() and not headers.get("Transfer-Encoding") else None


@dataclass(frozen=True)
class ContentRange:
    """Part of a file in an answer: its first and last byte; the file's size if it is stated."""

    first: int
    last: int
    total: Optional[int]

    @classmethod
    def parse(cls, text: str) -> ContentRange:
        """Parse a ``Content-Range`` header.

        Raises:
            RangeAnswerError: it is missing, or contradicts itself.
        """
        match = re.fullmatch(r"\s*bytes +(\d+)-(\d+)/(\d+|\*)\s*", text or "", re.IGNORECASE)
        if match is None:
            problem = f"invalid Content-Range {text!r}" if text else "no Content-Range"
            raise RangeAnswerError(f"it answers a range request with {problem}")
        first, last = int(match[1]), int(match[2])
        total = None if match[3] == "*" else int(match[3])
        if last < first or (total is not None and last >= total):
            raise RangeAnswerError(
                f"its Content-Range {text.strip()!r} contradicts itself: a file of {match[3]} bytes "
                f"has no bytes {first} to {last}"
            )
        return cls(first, last, total)


def require_file(status: int, headers: Any) -> None:
    """Raise :class:`HttpAnswerError` unless an answer holds a whole file, by its status and type."""
    if status != 200:
        raise HttpAnswerError(f"it sends status {status} instead of the file")
    # Headers of aiohttp have no method for the type.
    if (headers.get("Content-Type") or "").lower().startswith("text/html"):
        raise HttpAnswerError("it sends a web page instead of the file, such as a login")


def check_range(status: int, headers: Any, first: int, last: int) -> ContentRange:
    """Check that an answer holds the requested bytes ``first`` to ``last``, or those to the end.

    Raises:
        RangeAnswerError: it holds other bytes; the message is a clause after the server's name.
        HttpAnswerError: it holds no bytes of the file, by its status.
    """
    if status != 206:
        require_file(status, headers)
        raise RangeAnswerError("it sends the whole file instead of the requested range")
    if (headers.get("Content-Type") or "").lower().startswith("multipart/"):
        raise RangeAnswerError("it answers one range with several parts")
    part = ContentRange.parse(headers.get("Content-Range") or "")
    end = last if part.total is None else min(last, part.total - 1)
    # Without a total, a shorter answer may be the end of the file.
    is_complete = part.last == end or (part.total is None and part.last < end)
    if part.first != first or not is_complete:
        raise RangeAnswerError(
            f"it sends bytes {part.first}-{part.last} instead of the requested {first}-{end}"
        )
    length = read_length(headers)
    if length is not None and length != part.last - part.first + 1:
        raise RangeAnswerError(
            f"its answer has {length} bytes, and bytes {part.first}-{part.last} by its Content-Range"
        )
    return part


def parse_digests(headers: Any) -> Dict[str, str]:
    """Parse the checksums of an answer: ``adler32``, ``md5``, ``sha-256`` -> hexadecimal digits.

    Understands ``Digest`` (RFC 3230) and ``Repr-Digest`` (RFC 9530), names in any case, and values in
    hexadecimal digits or base64, as servers send both.  Unknown and unreadable ones are left out.
    """
    digests: Dict[str, str] = {}
    for header in ("Digest", "Repr-Digest"):
        for text in headers.get_all(header) or ():
            for item in text.split(","):
                name, _, value = item.strip().partition("=")
                name = name.strip().lower()
                name = _DIGEST_ALIASES.get(name, name)
                digits = _parse_digest_value(name, value.strip().strip(':"'))
                if digits:
                    digests.setdefault(name, digits)
    return digests


def _parse_digest_value(name: str, value: str) -> str:
    """Convert a checksum to hexadecimal digits; '' for an unknown or unreadable one."""
    size = _DIGITS.get(name)
    if size is None:
        return ""
    # adler32 without its leading zeros is common; shorter forms of the others are not.
    shortest = 1 if name == "adler32" else size
    if re.fullmatch(r"[0-9a-fA-F]+", value) and shortest <= len(value) <= size:
        return value.lower().rjust(size, "0")
    try:
        digits = base64.b64decode(value, validate=True).hex()
    except (binascii.Error, ValueError):
        return ""
    return digits if len(digits) == size else ""
