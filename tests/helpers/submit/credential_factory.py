"""Unsigned proxies and tokens with chosen expiry times."""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import Path

SECRET = "5ecretSignature"


def write_token(path: Path, end_s: float | None, secret: str = SECRET) -> Path:
    """Write a bearer token that expires at ``end_s``, seconds since 1970."""
    claims = {"sub": "someone"} | ({} if end_s is None else {"exp": int(end_s)})
    parts = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in ({}, claims)]
    path.write_text(".".join([*(part.decode() for part in parts), secret]) + "\n")
    path.chmod(0o600)
    return path


def write_proxy(path: Path, *ends_s: float, secret: str = SECRET) -> Path:
    """Write a chain of certificates with these expiry times, and a mock private key."""
    chain = "".join(ssl.DER_cert_to_PEM_cert(_encode_certificate(end)) for end in ends_s)
    path.write_text(f"{chain}-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n")
    path.chmod(0o600)
    return path


def _encode_certificate(end_s: float) -> bytes:
    """Encode a certificate up to its validity."""
    version, serial, other = (
        _encode_der(0xA0, _encode_der(2, b"\2")),
        _encode_der(2, b"\1"),
        _encode_der(0x30, b""),
    )
    validity = _encode_der(0x30, _encode_time(0) + _encode_time(end_s))
    return _encode_der(
        0x30,
        _encode_der(
            0x30, version + serial + other + other + validity + _encode_der(0x30, b"x" * 200)
        ),
    )


def _encode_time(seconds: float) -> bytes:
    when = time.gmtime(seconds)
    if when.tm_year < 2050:
        return _encode_der(0x17, time.strftime("%y%m%d%H%M%SZ", when).encode())
    return _encode_der(0x18, time.strftime("%Y%m%d%H%M%SZ", when).encode())


def _encode_der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + content
