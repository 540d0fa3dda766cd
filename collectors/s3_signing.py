"""Addresses of S3 objects signed for a limited time (AWS Signature Version 4), and their keys.

A signed address permits one method on one object to whoever has it, so every HTTP client can read it.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import os
import re
import time
from dataclasses import dataclass, field, replace
from typing import Dict, Mapping, Optional
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from .shared_files import read_document

#: Variable that names a file with keys, as other S3 clients use it, and the file without it.
CREDENTIALS_VARIABLE = "AWS_SHARED_CREDENTIALS_FILE"
_USUAL_FILE = "~/.aws/credentials"
#: Longest validity of a signature, and that of a request that is sent at once.
MAX_EXPIRY_S, REQUEST_EXPIRY_S = 7 * 86_400, 3_600
_DEFAULT_SECTION, _DEFAULT_REGION = "default", "us-east-1"
_ALGORITHM, _SERVICE, _END = "AWS4-HMAC-SHA256", "s3", "aws4_request"
_TRANSPORTS: Mapping[str, str] = {"s3": "http", "s3s": "https"}
_DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
_AMAZON_HOST = re.compile(r"(?:^|\.)s3[.-](?:dualstack\.)?([a-z]{2}-[a-z-]+-\d)\.amazonaws\.com$")
#: Values of a signed address that are not for logs and records.
_SECRET_VALUE = re.compile(
    r"(X-Amz-(?:Signature|Credential|Security-Token)(?:=|%3D))[^&\s\"'<>]+", re.IGNORECASE
)


class S3CredentialError(Exception):
    """Unusable keys; the message names the file and repeats no content."""


@dataclass(frozen=True)
class S3Keys:
    """Keys of a door.

    Attributes:
        access_key: public part.
        secret_key: secret part.
        session_token: token of temporary keys, '' for permanent ones.
        region: region of the server, '' for that of its address.
    """

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""


def load_keys(url: str, env: Mapping[str, str]) -> Optional[S3Keys]:
    """Load the keys for the server of a URL; None without any, for public objects.

    The variables ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY`` precede the file.  In the file,
    the section named for the host precedes ``AWS_PROFILE`` or ``default``.

    Raises:
        S3CredentialError: the file cannot be used.
    """
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or ""
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        token = env.get("AWS_SESSION_TOKEN", "")
        return S3Keys(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], token, region)
    path = env.get(CREDENTIALS_VARIABLE, "")
    if not path:
        path = os.path.expanduser(_USUAL_FILE)
        if not os.path.isfile(path):
            return None
    keys = _find_section(read_keys(path), url, env.get("AWS_PROFILE") or _DEFAULT_SECTION)
    return keys and replace(keys, region=keys.region or region)


def _find_section(
    keys_by_section: Mapping[str, S3Keys], url: str, default: str
) -> Optional[S3Keys]:
    """Find the keys of a server by its host and port, its host, or the default section."""
    parts = urlsplit(url)
    sections = (parts.netloc.lower(), parts.hostname or "", default)
    return next(filter(None, map(keys_by_section.get, sections)), None)


def read_keys(path: str) -> Dict[str, S3Keys]:
    """Read a file with keys: section -> keys.

    Raises:
        S3CredentialError: it cannot be read, or has no keys.
    """
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(read_document(path))
    except OSError as error:
        raise S3CredentialError(f"{path} cannot be read: {error.strerror}") from None
    except (configparser.Error, ValueError):  # their messages repeat lines
        raise S3CredentialError(f"{path} is no file of sections with name = value") from None
    keys = {}
    for section in parser.sections():
        values = parser[section]
        access_key = values.get("aws_access_key_id", "")
        secret_key = values.get("aws_secret_access_key", "")
        if access_key and secret_key:
            token = values.get("aws_session_token", "")
            keys[section] = S3Keys(access_key, secret_key, token, values.get("region", ""))
    if not keys:
        raise S3CredentialError(
            f"{path} has no section with aws_access_key_id and aws_secret_access_key"
        )
    return keys


def sign_address(
    method: str,
    url: str,
    keys: Optional[S3Keys],
    expires_s: float = REQUEST_EXPIRY_S,
    *,
    now_s: Optional[float] = None,
) -> str:
    """Return the http or https address of an object that permits a method for a limited time.

    Args:
        method: HTTP method; HEAD and GET need an address each.
        url: ``s3://`` or ``s3s://`` URL, also ``http://`` or ``https://``; a query is signed, too.
        keys: keys of the server; without any the address is not signed.
        expires_s: seconds for which the address is valid, at most :data:`MAX_EXPIRY_S`.
        now_s: time of the signature, seconds since 1970; now by default.
    """
    parts = urlsplit(url)
    transport = _TRANSPORTS.get(parts.scheme, parts.scheme)
    host, path = _format_host(parts, transport), quote(unquote(parts.path) or "/", safe="/-_.~")
    if keys is None:
        return urlunsplit((transport, host, path, parts.query, ""))
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    amazon = _AMAZON_HOST.search(parts.hostname or "")
    region = keys.region or (amazon[1] if amazon else _DEFAULT_REGION)
    scope = "/".join((stamp[:8], region, _SERVICE, _END))
    query_fields = parse_qsl(parts.query, keep_blank_values=True)
    fields = {
        # A redirect repeats those of the address that was signed for another server.
        **{name: value for name, value in query_fields if not name.startswith("X-Amz-")},
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{keys.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(max(1, min(int(expires_s), MAX_EXPIRY_S))),
        "X-Amz-SignedHeaders": "host",
    }
    if keys.session_token:
        fields["X-Amz-Security-Token"] = keys.session_token
    query = "&".join(f"{_escape(name)}={_escape(value)}" for name, value in sorted(fields.items()))
    request = "\n".join((method, path, query, f"host:{host}\n", "host", "UNSIGNED-PAYLOAD"))
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join((_ALGORITHM, stamp, scope, digest))
    key = f"AWS4{keys.secret_key}".encode()
    for word in (*scope.split("/"), text):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    return f"{transport}://{host}{path}?{query}&X-Amz-Signature={key.hex()}"


def mask_signatures(text: str) -> str:
    """Replace the secret parts of all signed addresses in a text."""
    return _SECRET_VALUE.sub(r"\1***", text)


def _format_host(parts: SplitResult, transport: str) -> str:
    """Return the Host header of a URL, which is signed: without the transport's own port."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    is_usual = parts.port in (None, _DEFAULT_PORTS.get(transport))
    return host if is_usual else f"{host}:{parts.port}"


def _escape(text: str) -> str:
    return quote(text, safe="-_.~")
