"""Addresses of web servers, and which of them may receive secrets."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import SplitResult, urlsplit


def is_loopback(host: str) -> bool:
    """Return whether an address or name belongs to this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_allowed_address(address: Any) -> bool:
    """Return whether secrets may be sent to a URL: over TLS, or on this machine."""
    parts = split_http_url(address)
    return parts is not None and (parts.scheme == "https" or is_loopback(str(parts.hostname)))


def split_http_url(value: Any) -> SplitResult | None:
    """Split an HTTP URL; None where it is none, or names no host or port 0."""
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port out of range
        return None
    return parts if named else None
