"""Doors of object stores that speak S3: HTTP doors whose requests have signed addresses.

The keys are those of the environment (:mod:`treehammer.collectors.s3_signing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from xml.etree.ElementTree import Element

from treehammer.collectors.http_requests import (
    NO_TOKEN,
    BearerToken,
    ByteBody,
    Deadline,
    HttpAnswerError,
)
from treehammer.collectors.s3_errors import MAX_ERROR_BYTES, read_error
from treehammer.collectors.s3_signing import load_keys, sign_address
from treehammer.collectors.xml_documents import local_name
from treehammer.datasets.doors.http_door import HttpDoor, HttpSession
from treehammer.datasets.doors.observations import FAILED, MISSING, REFUSED, FileObservation


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
        start = "".join(f"{folder}/" for folder in (below, path) if folder)
        query = f"delimiter=%2F&list-type=2&prefix={quote(start, safe='')}"
        with self.request("GET", f"{parts.scheme}://{parts.netloc}/{bucket}?{query}", {}) as answer:
            root = self.read_listing(answer)
        if local_name(root) != "ListBucketResult":
            name = f"<{local_name(root)}> {root.findtext('{*}Code', '')}".strip()
            raise HttpAnswerError(f"its listing is {name} instead of a bucket's")
        return list(dict.fromkeys(_iter_names(root, start)))

    def describe_error(self, error: HTTPError) -> FileObservation:
        """Describe an error by its code and its message."""
        body = error.read(MAX_ERROR_BYTES)
        answer = read_error(error.code, error.headers, body, has_keys=self.keys is not None)
        cause = answer.cause
        failure = REFUSED if cause.is_credential else MISSING if cause.kind == MISSING else FAILED
        message = ": ".join(filter(None, (f"{error.code} {error.reason}", answer.text)))
        return FileObservation(failure=failure, message=message, remedy=cause.remedy)


_DOOR = HttpDoor(S3Session)
probe_server, stat_file, read_file = _DOOR.probe_server, _DOOR.stat_file, _DOOR.read_file
write_file, remove_file = _DOOR.write_file, _DOOR.remove_file


def _iter_names(listing: Element, start: str) -> Iterator[tuple[str, bool]]:
    """Yield each name below a prefix, and whether it is a folder; without empty objects."""
    for entry in listing:
        fields = [(local_name(field), field.text or "") for field in entry]
        if local_name(entry) not in ("Contents", "CommonPrefixes") or ("Size", "0") in fields:
            continue
        for kind, key in fields:
            # Some stores list the content of folders, too.
            name, slash, _ = key.lstrip("/").removeprefix(start).partition("/")
            if kind in ("Key", "Prefix") and name:
                yield name, bool(slash) or kind == "Prefix"
