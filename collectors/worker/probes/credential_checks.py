"""Location and expiry of a job's credentials for storage: x509 proxy and bearer token.

Messages name files and times only, never content.
"""

from __future__ import annotations

import base64
import calendar
import json
import os
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ...record.failures import CREDENTIAL, ExecutionError, Failure

#: Variables that name the files.
PROXY_VARIABLE, TOKEN_FILE_VARIABLE = "X509_USER_PROXY", "BEARER_TOKEN_FILE"
CREDENTIAL_NAMES = {PROXY_VARIABLE: "x509 proxy", TOKEN_FILE_VARIABLE: "bearer token"}

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_UTC_TIME_TAG, _GENERALIZED_TIME_TAG, _VERSION_TAG = 0x17, 0x18, 0xA0
#: Upper bound of a credential's size.
_MAX_BYTES = 1_000_000
_UNREADABLE_CLAIMS = "its claims cannot be read"


def resolve_credentials(env: Dict[str, str], job_folder: str) -> None:
    """Make the credential paths in ``env`` absolute, since payloads run in folders of their own.

    A relative path belongs to the job's sandbox.  Without a named token, the only token of
    HTCondor's credential services is used.
    """
    creds = env.get("_CONDOR_CREDS", "")
    if TOKEN_FILE_VARIABLE not in env and os.path.isdir(creds):
        tokens = sorted(name for name in os.listdir(creds) if name.endswith(".use"))
        if len(tokens) == 1:
            env[TOKEN_FILE_VARIABLE] = os.path.join(creds, tokens[0])
    for name in CREDENTIAL_NAMES:
        if env.get(name) and not os.path.isabs(env[name]):
            env[name] = os.path.join(job_folder, env[name])
            try:
                os.chmod(env[name], 0o600)  # clients reject files that others can read
            except OSError:
                pass  # check_credentials reports the problem


def check_credentials(env: Mapping[str, str]) -> None:
    """Check that the credentials in ``env`` are usable now.

    Raises:
        ExecutionError: class ``credential``, kind ``invalid`` or ``expired``.
    """
    for name, label in CREDENTIAL_NAMES.items():
        path = env.get(name)
        if not path:
            continue
        try:
            end = credential_expiry(name, path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            _raise_credential_error(
                "invalid", f"The {label} {path} cannot be used: {reason}. Submit with another one."
            )
        if end is not None and end <= time.time():
            _raise_credential_error(
                "expired",
                f"The {label} {path} expired at {format_time(end)}. Renew it, then resume the campaign.",
            )


def _raise_credential_error(kind: str, message: str) -> None:
    raise ExecutionError(Failure(CREDENTIAL, kind, "setup", message))


def format_time(seconds: float) -> str:
    """Format a time in seconds since 1970 for messages."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def credential_expiry(name: str, path: str) -> Optional[float]:
    """Return a credential's expiry in seconds since 1970; None when it states none.

    Args:
        name: :data:`PROXY_VARIABLE` or :data:`TOKEN_FILE_VARIABLE`.
        path: the credential's file.

    Raises:
        OSError: the file cannot be read.
        ValueError: not a credential; the message repeats no content.
    """
    with open(path, "rb") as stream:
        text = stream.read(_MAX_BYTES).decode("ascii", "replace")
    return _proxy_expiry(text) if name == PROXY_VARIABLE else token_expiry(text.strip())


def token_expiry(text: str) -> Optional[float]:
    """Return a token's expiry in seconds since 1970; None when it states none.

    Raises:
        ValueError: not a token; the message repeats no content.
    """
    end = token_claims(text).get("exp")
    try:
        return None if end is None else float(end)
    except (ValueError, TypeError):
        raise ValueError(_UNREADABLE_CLAIMS) from None


def token_claims(text: str) -> Dict[str, Any]:
    """Return a token's claims, unverified; empty when it is opaque to all but its issuer.

    Raises:
        ValueError: not a token; the message repeats no content.
    """
    parts = text.split(".")
    if not text or any(c.isspace() for c in text):
        raise ValueError("it is empty or not a single token")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        raise ValueError(_UNREADABLE_CLAIMS) from None
    if not isinstance(claims, dict):
        raise ValueError(_UNREADABLE_CLAIMS)
    return claims


def _proxy_expiry(text: str) -> float:
    """Return the earliest expiry in the chain: the proxy's own and its signers' certificates."""
    ends: List[float] = []
    for part in text.split(_BEGIN)[1:]:
        try:
            ends.append(_certificate_expiry(base64.b64decode(part.split(_END)[0])))
        except (ValueError, IndexError, StopIteration):
            raise ValueError("it contains an unreadable certificate") from None
    if not ends:
        raise ValueError("it contains no certificate")
    return min(ends)


def _certificate_expiry(der: bytes) -> float:
    """Return the end of a certificate's validity (RFC 5280, 4.1)."""
    (_, certificate) = next(_parse_der_elements(der))
    (_, signed) = next(_parse_der_elements(certificate))
    fields = [item for item in _parse_der_elements(signed) if item[0] != _VERSION_TAG]
    _, (tag, end) = _parse_der_elements(fields[3][1])  # serial number, signature, issuer, validity
    form = {_UTC_TIME_TAG: "%y%m%d%H%M%SZ", _GENERALIZED_TIME_TAG: "%Y%m%d%H%M%SZ"}.get(tag, "")
    return float(calendar.timegm(time.strptime(end.decode("ascii"), form)))


def _parse_der_elements(der: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield tag and content of each element of a DER sequence."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(der[at : at + count], "big"), at + count
        if at + size > len(der):
            raise ValueError("truncated")
        yield tag, der[at : at + size]
        at += size
