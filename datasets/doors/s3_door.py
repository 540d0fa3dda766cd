"""Doors of object stores that speak S3: HTTP doors whose requests have signed addresses.

The keys are those of the environment (:mod:`treehammer.collectors.s3_signing`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

from treehammer.collectors.http_requests import (
    NO_TOKEN,
    BearerToken,
    ByteBody,
    Deadline,
    HttpAnswerError,
)
from treehammer.collectors.s3_errors import KEYS_HINT, MAX_ERROR_BYTES, read_error
from treehammer.collectors.s3_signing import (
    S3CredentialError,
    load_keys,
    mask_signatures,
    sign_address,
)
from treehammer.collectors.xml_documents import local_name
from treehammer.datasets.doors import http_door
from treehammer.datasets.doors.http_door import HttpSession
from treehammer.datasets.doors.observations import (
    FAILED,
    MAX_FOLDER_ENTRIES,
    MISSING,
    REFUSED,
    FileObservation,
    ProbeResult,
    ProbeTarget,
)
from treehammer.text_formatting import ByteCallback


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

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        deadline: Deadline | None = None,
        body: ByteBody | None = None,
    ) -> Any:
        """Send a request; an error in the answer to HEAD, which has no body, is requested by GET."""
        try:
            return super().request(method, url, headers, deadline, body)
        except HTTPError as error:
            if method != "HEAD":
                raise
            error.close()
        with super().request("GET", url, {"Range": "bytes=0-0"}) as answer:
            raise HttpAnswerError(
                f"it answers GET with status {answer.status}, and HEAD with an error"
            )

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
            root = self.read_listing(answer)
        if local_name(root) != "ListBucketResult":
            raise HttpAnswerError(f"its listing is <{local_name(root)}> instead of a bucket's")
        entries = [
            (local_name(field), field.text or "")
            for entry in root
            if local_name(entry) in ("Contents", "CommonPrefixes")
            for field in entry
        ]
        # An object whose name ends with a slash stands for the folder itself.
        return [
            (name.rstrip("/").rpartition("/")[2], kind == "Prefix")
            for kind, name in entries
            if kind == "Prefix" or (kind == "Key" and not name.endswith("/"))
        ]

    def describe_error(self, error: HTTPError) -> FileObservation:
        """Describe an error by its code."""
        body = error.read(MAX_ERROR_BYTES)
        error_code = read_error(error.code, error.headers, body, has_keys=self.keys is not None)
        cause = error_code.cause
        failure = REFUSED if cause.is_credential else MISSING if cause.kind == MISSING else FAILED
        text = f"{error.code} {error.reason}"
        message = f"{text}: {error_code.code}" if error_code.code else text
        return FileObservation(failure=failure, message=message, remedy=cause.remedy)


def probe_server(prefix: str, target: ProbeTarget) -> ProbeResult:
    """Read a file by a range request."""
    try:
        session = S3Session(prefix)
    except S3CredentialError as error:
        return ProbeResult(str(error), KEYS_HINT)
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
