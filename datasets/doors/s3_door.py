"""Doors of object stores that speak S3: HTTP doors whose requests have signed addresses.

The keys are those of the environment (:mod:`treehammer.collectors.s3_signing`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import quote, urlsplit

from treehammer.collectors.http_requests import NO_TOKEN, BearerToken
from treehammer.collectors.s3_signing import (
    S3CredentialError,
    load_keys,
    mask_signatures,
    sign_address,
)
from treehammer.datasets.doors import http_door
from treehammer.datasets.doors.http_door import MAX_LISTING_BYTES, HttpSession
from treehammer.datasets.doors.observations import (
    MAX_FOLDER_ENTRIES,
    REFUSED,
    FileObservation,
    ProbeResult,
    ProbeTarget,
)
from treehammer.text_formatting import ByteCallback

_KEYS_HINT = (
    "Name a file with a section [HOST] or [default], aws_access_key_id and aws_secret_access_key "
    "in AWS_SHARED_CREDENTIALS_FILE."
)
_LISTED_NAME = re.compile(
    r"<CommonPrefixes>\s*<Prefix>([^<]*)/</Prefix>|<Contents>\s*<Key>([^<]*[^/<])</Key>"
)


class S3Session(HttpSession):
    """HTTP session that signs the address of each request.

    Raises:
        S3CredentialError: the keys cannot be used.
    """

    def __init__(self, prefix: str) -> None:
        self.keys = load_keys(prefix, os.environ)
        super().__init__(prefix)

    def load_token(self) -> BearerToken:
        """Return no token: servers refuse a request with two credentials."""
        return NO_TOKEN

    def find_address(self, method: str, url: str) -> str:
        """Sign the address of a request."""
        return sign_address(method, url, self.keys)

    def list_entries(self, path: str) -> list[tuple[str, bool]]:
        """List the start of a folder: each name, and whether objects lie below it."""
        parts = urlsplit(self.prefix)
        bucket, _, below = parts.path.strip("/").partition("/")
        folder = "/".join(filter(None, (below, path)))
        query = {
            "delimiter": "/",
            "list-type": "2",
            "max-keys": str(MAX_FOLDER_ENTRIES),
            "prefix": f"{folder}/" if folder else "",
        }
        words = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        with self.request("GET", f"{parts.scheme}://{parts.netloc}/{bucket}?{words}", {}) as answer:
            text = answer.read(MAX_LISTING_BYTES).decode("utf-8", "replace")
        return [
            (unescape(folder_name or key).rpartition("/")[2], bool(folder_name))
            for folder_name, key in _LISTED_NAME.findall(text)
        ]


def probe_server(prefix: str, target: ProbeTarget) -> ProbeResult:
    """Read a file by a range request."""
    try:
        session = S3Session(prefix)
    except S3CredentialError as error:
        return ProbeResult(str(error), _KEYS_HINT)
    except OSError as error:
        return ProbeResult(
            f"the authorities cannot be used: {error.strerror}", "Correct X509_CERT_DIR."
        )
    probe = http_door.probe_session(session, target)
    return replace(probe, problem=mask_signatures(probe.problem))


def stat_file(url: str) -> FileObservation:
    """Request an object's size; object stores have no adler32."""
    return _observe_object(lambda: http_door.stat_file(url, S3Session))


def read_file(
    url: str, size: int, advance: ByteCallback | None = None, copy_to: Path | None = None
) -> FileObservation:
    """Read an object of ``size`` bytes and its checksums, and copy it to a new file if one is given."""
    return _observe_object(lambda: http_door.read_file(url, size, advance, copy_to, S3Session))


def write_file(source: Path, url: str, advance: ByteCallback | None = None) -> FileObservation:
    """Copy a local file to the server in one request, replacing any object there."""
    return _observe_object(lambda: http_door.write_file(source, url, advance, S3Session))


def remove_file(url: str) -> FileObservation:
    """Remove an object."""
    return _observe_object(lambda: http_door.remove_file(url, S3Session))


def _observe_object(action: Callable[[], FileObservation]) -> FileObservation:
    try:
        observation = action()
        # A redirect may repeat the signed address.
        return replace(observation, message=mask_signatures(observation.message))
    except S3CredentialError as error:
        return FileObservation(failure=REFUSED, message=str(error))
