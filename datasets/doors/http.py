"""Doors that use HTTP."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from html import unescape
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

from treehammer.collectors.tls_context import make_tls_context
from treehammer.datasets.doors.file_observation import (
    FAILED,
    MISSING,
    NO_RESPONSE,
    REFUSED,
    FileObservation,
    normalize_adler32,
)
from treehammer.datasets.doors.probe import (
    NOTHING_TO_READ,
    PERMISSION_HINT,
    SAMPLE_BYTES,
    ProbeResult,
    ProbeTarget,
    check_sample,
    find_first_file,
)
from treehammer.datasets.model.file_digest import digest_blocks
from treehammer.progress import ByteCallback
from treehammer.version import __version__

#: Timeout of a response in seconds.
RESPONSE_TIMEOUT_S = 10.0
#: Timeout in seconds of a checksum, for which the server may read the file.
CHECKSUM_TIMEOUT_S = 600.0
#: Maximum number of bytes read of a folder's listing.
MAX_LISTING_BYTES = 1_000_000
#: Redirections of one request.
MAX_REDIRECTIONS = 8
#: Bytes of each read.
READ_BLOCK_BYTES = 1 << 20

_RESPONSE = re.compile(r"<(?:\w+:)?response\b.*?</(?:\w+:)?response>", re.DOTALL)
_HREF = re.compile(r"<(?:\w+:)?href>([^<]*)</")
_COLLECTION = re.compile(r"<(?:\w+:)?collection\b")


def probe_server(prefix: str, target: ProbeTarget) -> ProbeResult:
    """Read a file by a range request, as ROOT does."""
    try:
        session = _HttpSession(prefix)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is none"
        return ProbeResult(
            f"the credential cannot be used: {why}", "Correct X509_USER_PROXY, BEARER_TOKEN_FILE."
        )
    try:
        try:
            return session.probe_target(target)
        except HTTPError as error:
            with error:
                return _describe_http_error(error, target, session.server_name(error.headers))
    except URLError as error:
        return _describe_connection_error(error.reason)
    except (OSError, HTTPException, ValueError) as error:
        return _describe_connection_error(error)


def stat_file(url: str) -> FileObservation:
    """Request a file's size and adler32 from the server."""

    def head(session: _HttpSession) -> FileObservation:
        headers = {"Want-Digest": "adler32"}
        with session.request("HEAD", url, headers, limit_s=CHECKSUM_TIMEOUT_S) as answer:
            length = answer.headers.get("Content-Length", "")
            digests = answer.headers.get("Digest", "")
        if not length.isdigit():
            return FileObservation(failure=FAILED, message="does not report the size of the file")
        adler32 = re.search(r"\badler32=([0-9a-fA-F]{1,8})\b", digests)
        return FileObservation(int(length), normalize_adler32(adler32[1]) if adler32 else "")

    return _observe_file(url, head)


def read_file(
    url: str, advance: ByteCallback | None = None, copy_to: Path | None = None
) -> FileObservation:
    """Read a file and its checksums, and copy it to a new file if one is given."""

    def get(session: _HttpSession) -> FileObservation:
        with (
            session.request("GET", url, {}) as answer,
            Path(copy_to or os.devnull).open("wb") as kept,
        ):
            length = answer.headers.get("Content-Length", "")
            found = digest_blocks(iter(partial(answer.read, READ_BLOCK_BYTES), b""), advance, kept)
        if length.isdigit() and found.size < int(length):
            return FileObservation(
                failure=NO_RESPONSE, message=f"the connection ended after {found.size} bytes"
            )
        return FileObservation.from_digest(found)

    return _observe_file(url, get)


def write_file(source: Path, url: str, advance: ByteCallback | None = None) -> FileObservation:
    """Copy a local file to the server, replacing any file there."""

    def put(session: _HttpSession) -> FileObservation:
        session.send_anywhere("PUT", url, source)
        size = source.stat().st_size
        if advance:
            advance(size)
        return FileObservation(size)

    return _observe_file(url, put)


def remove_file(url: str) -> FileObservation:
    """Remove a file."""

    def delete(session: _HttpSession) -> FileObservation:
        session.send_anywhere("DELETE", url)
        return FileObservation()

    return _observe_file(url, delete)


def _observe_file(url: str, ask: Callable[[_HttpSession], FileObservation]) -> FileObservation:
    try:
        return ask(_HttpSession(url))
    except HTTPError as error:
        with error:
            trouble = {401: REFUSED, 403: REFUSED, 404: MISSING}.get(error.code, FAILED)
            return FileObservation(failure=trouble, message=f"{error.code} {error.reason}")
    except URLError as error:
        return FileObservation(
            failure=NO_RESPONSE, message=_describe_connection_error(error.reason).problem
        )
    except (OSError, HTTPException, ValueError) as error:
        return FileObservation(
            failure=NO_RESPONSE, message=_describe_connection_error(error).problem
        )


class _HttpSession:
    """HTTP session with one door, using the credentials of the environment."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        secure = urlsplit(prefix).scheme == "https"
        self.token = _load_token() if secure else ""  # never sent unencrypted
        self.opener = build_opener(
            HTTPSHandler(context=make_tls_context(os.environ)) if secure else HTTPSHandler()
        )

    def probe_target(self, target: ProbeTarget) -> ProbeResult:
        path = target.path or find_first_file(self.list_entries)
        if not path:
            return ProbeResult(details=NOTHING_TO_READ)
        with self.request(
            "GET", self.url_of(path), {"Range": f"bytes=0-{SAMPLE_BYTES - 1}"}
        ) as answer:
            server = self.server_name(answer.headers)
            content = answer.read(SAMPLE_BYTES)
            whole = re.search(r"/(\d+)$", answer.headers.get("Content-Range", ""))
            if answer.status != 206 or not whole:
                return ProbeResult(
                    "sends whole files instead of the requested range, which ROOT cannot use",
                    "Let the server honour Range.",
                    server=server,
                )
            sample = check_sample(target, path, content, int(whole[1]))
            host = urlsplit(answer.url).netloc
        return ProbeResult(sample.problem, sample.remedy, f"{sample.details} at {host}", server)

    def list_entries(self, path: str) -> list[tuple[str, bool]]:
        """List a folder by WebDAV: each name, and whether it is a folder."""
        with self.request(
            "PROPFIND", self.url_of(path).rstrip("/") + "/", {"Depth": "1"}
        ) as answer:
            text = answer.read(MAX_LISTING_BYTES).decode("utf-8", "replace")
        found = []
        for response in _RESPONSE.findall(text):
            href = _HREF.search(response)
            if href:
                name = unquote(urlsplit(href[1].strip()).path).rstrip("/").rpartition("/")[2]
                found.append((name, bool(_COLLECTION.search(response))))
        return found[1:]  # the first is the folder itself

    def url_of(self, path: str) -> str:
        """Build the URL of a path below the prefix."""
        return f"{self.prefix}/{quote(path)}"

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        limit_s: float | None = None,
        content: BinaryIO | None = None,
    ) -> Any:
        request = Request(  # noqa: S310  # the sites file accepts no other schemes
            url,
            data=content,
            method=method,
            headers={"User-Agent": f"treehammer/{__version__}", **headers},
        )
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        return self.opener.open(request, timeout=limit_s or RESPONSE_TIMEOUT_S)

    def send_anywhere(self, method: str, url: str, source: Path | None = None) -> None:
        """Send a request that changes a file, and follow redirections to the data server."""
        for _ in range(MAX_REDIRECTIONS):
            try:
                self._send_file(method, url, source)
                return
            except HTTPError as error:
                target = error.headers.get("Location", "")
                if error.code not in (307, 308) or not target:
                    raise
                error.close()
                url = urljoin(url, target)
        raise ValueError("too many redirections")

    def _send_file(self, method: str, url: str, source: Path | None) -> None:
        if source is None:
            self.request(method, url, {}).close()
            return
        headers = {"Content-Length": str(source.stat().st_size)}
        with source.open("rb") as content:
            self.request(method, url, headers, content=content).close()

    @staticmethod
    def server_name(headers: Any) -> str:
        """Extract name and version of the server, such as ``XRootD v5.5.3``."""
        return str(headers.get("Server", "")).replace("/", " ", 1).strip()


def _load_token() -> str:
    token = os.environ.get("BEARER_TOKEN", "")
    file = os.environ.get("BEARER_TOKEN_FILE", "")
    return token or (Path(file).read_text(encoding="utf-8").strip() if file else "")


def _describe_http_error(error: HTTPError, target: ProbeTarget, server: str) -> ProbeResult:
    said = error.read(200).decode("utf-8", "replace").strip().partition("\n")[0]
    is_text = said and "<" not in said
    message = f"{error.code} {error.reason}" + (f": {unescape(said)}" if is_text else "")
    if error.code in (401, 403):
        return ProbeResult(message, PERMISSION_HINT, server=server)
    if error.code == 404:
        return ProbeResult(message, target.missing_file_hint, server=server)
    if error.code in (405, 501) and not target.path:
        return ProbeResult(
            details="answers, and lists no folders: name a file to read with --dataset",
            server=server,
            tried=False,
        )
    return ProbeResult(message, "Look into the server's log.", server=server)


def _describe_connection_error(reason: object) -> ProbeResult:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ProbeResult(
            f"its certificate is not trusted: {reason.verify_message}",
            "Name the folder of the grid's authorities in X509_CERT_DIR.",
        )
    if isinstance(reason, ssl.SSLError):
        return ProbeResult(
            f"no TLS connection: {reason.reason or reason}",
            "Check that the port speaks https, and your proxy in X509_USER_PROXY.",
        )
    if isinstance(reason, TimeoutError):
        return ProbeResult(
            f"the server accepts connections and does not answer within {RESPONSE_TIMEOUT_S:.0f} s",
            "Look into the server's log.",
        )
    what = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return ProbeResult(f"does not answer as a web server: {what}", "Check the port of its prefix.")
