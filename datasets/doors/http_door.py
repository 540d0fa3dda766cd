"""Doors that use HTTP."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import unescape
from http.client import HTTPException, IncompleteRead
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from xml.etree.ElementTree import Element

from treehammer.collectors.http_answers import (
    RangeAnswerError,
    check_range,
    parse_digests,
    read_length,
    require_file,
)
from treehammer.collectors.http_requests import (
    BearerToken,
    ByteBody,
    Deadline,
    HttpAnswerError,
    send_request,
)
from treehammer.collectors.s3_errors import KEYS_HINT, MAX_ERROR_BYTES, PLAIN_HTTP, read_code
from treehammer.collectors.s3_signing import S3CredentialError, mask_signatures
from treehammer.collectors.shared_files import read_document
from treehammer.collectors.storage_access import find_scheme, make_tls_context
from treehammer.collectors.xml_documents import BARE_AMPERSAND, XmlError, local_name, parse_xml
from treehammer.datasets.doors.observations import (
    FAILED,
    MISSING,
    NO_RESPONSE,
    NOTHING_TO_READ,
    OVERLOAD_HINT,
    PERMISSION_HINT,
    REFUSED,
    SAMPLE_BYTES,
    FileObservation,
    ProbeResult,
    ProbeTarget,
    check_sample,
    find_first_file,
    read_blocks,
)
from treehammer.datasets.manifest import digest_blocks
from treehammer.text_formatting import ByteCallback
from treehammer.version import __version__

#: Total time in seconds of a small request, and of an answer that has begun.
RESPONSE_TIMEOUT_S = 20.0
#: Time in seconds until a server answers with a checksum, for which it may read the file.
CHECKSUM_TIMEOUT_S = 600.0
#: Maximum number of bytes read of a folder's listing.
MAX_LISTING_BYTES = 1_000_000
#: Bytes of each read.
READ_BLOCK_BYTES = 1 << 20

#: Remedy for answers that break the rules of range requests.
RANGE_HINT = "Let the server and its proxies honor Range (RFC 9110, 14.2), as ROOT needs it."

#: Title of a web page that says more than the status, as nginx does where it requires a certificate.
_TITLE = re.compile(r"<title>(?:\d{3}\s)?([^<]*)", re.IGNORECASE)
#: Reason why a token is refused (RFC 6750).
_DESCRIPTION = re.compile(r'error_description="([^"]+)"')
_MISSING_CERTIFICATE = re.compile(rb"400 (?:No required|The) SSL certificate")
_TLS_HINT = "The port speaks TLS: use https:// in the prefix."
_ADDRESS_HINT = "Check host, port and scheme of its prefix, and the server's log."
_HINTS_BY_STATUS = {401: PERMISSION_HINT, 403: PERMISSION_HINT, 416: RANGE_HINT}
_HINTS_BY_STATUS |= dict.fromkeys((429, 503), OVERLOAD_HINT)
_METHOD_HINT = "The server must permit HEAD, GET with Range, and to write PUT and DELETE."
_HINTS_BY_STATUS |= dict.fromkeys((405, 501), _METHOD_HINT)
#: Errors of OpenSSL on a certificate whose authority is unknown.
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
#: Bytes that XML does not permit where a server writes names as they are, such as Latin-1.
_UNESCAPED = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\xff]")
#: Start of an element with a prefix, which not every server declares.
_PREFIX = re.compile(rb"(</?)[\w.-]+:")
#: Elements of a listing by WebDAV, in any namespace, as some servers use a wrong one.
_RESPONSE, _HREF, _STATUS = "{*}response", "{*}href", "{*}status"
_PROPERTY_STATUS = "{*}propstat/{*}status"
#: Such as HTTP/1.1 403 Forbidden.
_ERROR_STATUS = re.compile(r"\s*\S+ ([45]\d\d) *(.*)")
_COLLECTION = ".//{*}collection"
#: Size of an empty file, which some servers list for folders, too.
_EMPTY = ".//{*}prop[{*}getcontentlength='0']"
#: Scheme and host of an address.  Names may hold colons and slashes, which a parser of URLs misreads.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)


class HttpDoor:
    """Functions of a client of doors by HTTP, which opens a session with the server of each URL."""

    def __init__(self, open_session: Callable[[str], HttpSession]) -> None:
        self._open_session = open_session

    def probe_server(self, prefix: str, target: ProbeTarget) -> ProbeResult:
        """Read a file by a range request, as ROOT does."""
        try:
            session = self._open_session(prefix)
        except S3CredentialError as error:
            return ProbeResult(str(error), KEYS_HINT)
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            problem = f"the credential cannot be used: {cause}"
            return ProbeResult(problem, "Correct X509_USER_PROXY, BEARER_TOKEN_FILE.")
        probe = _probe_session(session, target)
        return replace(probe, problem=mask_signatures(probe.problem))

    def stat_file(self, url: str) -> FileObservation:
        """Request a file's size and checksum from the server."""

        def head(session: HttpSession) -> FileObservation:
            deadline = Deadline(CHECKSUM_TIMEOUT_S, RESPONSE_TIMEOUT_S)
            with session.request("HEAD", url, {"Want-Digest": "adler32"}, deadline) as answer:
                require_file(answer.status, answer.headers)
                size, digests = read_length(answer.headers), parse_digests(answer.headers)
            if size is None:
                raise HttpAnswerError("its answer to HEAD has no Content-Length, the file's size")
            return FileObservation(size, digests.get("adler32", ""), digests.get("sha-256", ""))

        return self._observe_file(url, head)

    def read_file(
        self, url: str, size: int, advance: ByteCallback | None = None, copy_to: Path | None = None
    ) -> FileObservation:
        """Read a file of ``size`` bytes and its checksums, and copy it to a new file if one is given."""

        def get(session: HttpSession) -> FileObservation:
            with (
                session.request("GET", url, {}, Deadline.for_transfer()) as answer,
                Path(copy_to or os.devnull).open("wb") as copy,
            ):
                require_file(answer.status, answer.headers)
                blocks = read_blocks(lambda _: answer.read(READ_BLOCK_BYTES), size)
                digest = digest_blocks(blocks, advance, copy)
                length = read_length(answer.headers)
            if problem := _find_cut(digest.size, length, size, answer.headers):
                return FileObservation(failure=NO_RESPONSE, message=problem)
            return FileObservation.from_digest(digest)

        return self._observe_file(url, get)

    def write_file(
        self, source: Path, url: str, advance: ByteCallback | None = None
    ) -> FileObservation:
        """Copy a local file to the server, replacing any file there."""

        def put(session: HttpSession) -> FileObservation:
            size = source.stat().st_size
            session.change("PUT", url, {"Content-Length": str(size)}, lambda: source.open("rb"))
            if advance:
                advance(size)
            return FileObservation(size)

        return self._observe_file(url, put)

    def remove_file(self, url: str) -> FileObservation:
        """Remove a file."""

        def delete(session: HttpSession) -> FileObservation:
            session.change("DELETE", url)
            return FileObservation()

        return self._observe_file(url, delete)

    def _observe_file(
        self, url: str, action: Callable[[HttpSession], FileObservation]
    ) -> FileObservation:
        try:
            session = self._open_session(url)
            try:
                return action(session)
            except HTTPError as error:
                with error:
                    return session.describe_error(error)
        except S3CredentialError as error:
            return FileObservation(failure=REFUSED, message=str(error))
        except HttpAnswerError as error:
            # A redirect may repeat a signed address.
            return FileObservation(failure=FAILED, message=mask_signatures(str(error)))
        except (OSError, HTTPException, ValueError) as error:
            problem = mask_signatures(_describe_connection_error(error).problem)
            return FileObservation(failure=NO_RESPONSE, message=problem)


def _probe_session(session: HttpSession, target: ProbeTarget) -> ProbeResult:
    """Read a file of a session's server by a range request."""
    try:
        try:
            return session.probe_target(target)
        except HTTPError as error:
            with error:
                return _describe_failed_probe(session, error, target)
    except RangeAnswerError as error:
        return ProbeResult(str(error).removeprefix("it "), RANGE_HINT)
    except HttpAnswerError as error:
        other_file = "" if target.path else ", or name a file to read with --dataset"
        hint = f"Look into the server's configuration{other_file}."
        return ProbeResult(str(error).removeprefix("it "), hint)
    except (OSError, HTTPException, ValueError) as error:
        return _describe_connection_error(error)


def _describe_failed_probe(
    session: HttpSession, error: HTTPError, target: ProbeTarget
) -> ProbeResult:
    server = session.server_name(error.headers)
    if error.code in (405, 501) and not target.path:
        details = "answers, and lists no folders: name a file to read with --dataset"
        return ProbeResult(details=details, server=server, tried=False)
    if error.code == 416 and target.path and error.headers.get("Content-Range", "").endswith("*/0"):
        return replace(check_sample(target, target.path, b"", 0), server=server)
    observed = session.describe_error(error)
    remedy = observed.remedy or (
        target.missing_file_hint if observed.failure == MISSING else "Look into the server's log."
    )
    return ProbeResult(observed.message, remedy, server=server)


def _find_cut(received: int, length: int | None, size: int, headers: Any) -> str:
    """Describe an answer that ended too early; '' for a complete one."""
    if length is not None and received < min(length, size):
        return f"the connection ended after {received} of {length} bytes"
    is_chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
    if length is None and not is_chunked and received < size:
        # The end of the connection is the end of the file, or a failure.
        return f"the connection ended after {received} of {size} bytes; the server states no length"
    return ""


class HttpSession:
    """HTTP session with the door of a URL or prefix, using the credentials of the environment."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        scheme = find_scheme(prefix)
        self.tls = make_tls_context(os.environ) if scheme and scheme.tls else None
        self.token = self.load_token()

    def load_token(self) -> BearerToken:
        """Load the token of the environment, which is never sent unencrypted."""
        token = os.environ.get("BEARER_TOKEN", "") if self.tls else ""
        file = os.environ.get("BEARER_TOKEN_FILE", "") if self.tls else ""
        if file and not token:
            token = read_document(file).strip()
        return BearerToken.for_door(token, self.prefix, os.environ)

    def probe_target(self, target: ProbeTarget) -> ProbeResult:
        """Read two overlapping ranges of a file."""
        path = target.path or find_first_file(self.list_entries)
        if not path:
            return ProbeResult(details=NOTHING_TO_READ)
        content, total, answer = self._read_range(path, 0)
        server = self.server_name(answer.headers)
        sample = check_sample(target, path, content, total)
        if not sample.problem and len(content) == SAMPLE_BYTES:
            sample = self._check_second_range(path, content, sample, total)
        host = urlsplit(answer.url).netloc
        return ProbeResult(sample.problem, sample.remedy, f"{sample.details} at {host}", server)

    def _read_range(self, path: str, first: int) -> tuple[bytes, int | None, Any]:
        """Read a sample; return it with the size of the file, None if unknown, and the answer.

        Raises:
            HttpAnswerError: the server sends something else.
        """
        last = first + SAMPLE_BYTES - 1
        with self.request("GET", self.url_of(path), {"Range": f"bytes={first}-{last}"}) as answer:
            if answer.status == 200 and read_length(answer.headers) == 0:
                return b"", 0, answer  # an empty file has no ranges
            part = check_range(answer.status, answer.headers, first, last)
            content = answer.read(part.last - part.first + 1)
        return content, part.total, answer

    def _check_second_range(
        self, path: str, content: bytes, sample: ProbeResult, total: int | None
    ) -> ProbeResult:
        """Compare a range from the middle of the first, which a server may take for another one."""
        middle = SAMPLE_BYTES // 2
        if total is not None and total <= middle + SAMPLE_BYTES:
            return sample
        overlap, _, _ = self._read_range(path, middle)
        if overlap[: SAMPLE_BYTES - middle] == content[middle:]:
            return sample
        problem = "the server sends other bytes than it states in Content-Range"
        return ProbeResult(problem, RANGE_HINT, sample.details)

    def list_entries(self, path: str) -> list[tuple[str, bool]]:
        """List a folder by WebDAV: each name, and whether it is a folder; without empty files."""
        url = self.url_of(path).rstrip("/") + "/"
        with self.request("PROPFIND", url, {"Depth": "1"}) as answer:
            root = self.read_listing(answer)
            folder = _split_path(urlsplit(answer.url).path)
        if local_name(root) != "multistatus":
            raise HttpAnswerError(f"its listing is <{local_name(root)}> instead of WebDAV's")
        resources = {}
        for response in root.iterfind(_RESPONSE):
            href = response.findtext(_HREF, "").strip()
            error = _find_refusal(response)
            if error and len(root) == 1:  # the folder itself
                raise HTTPError(answer.url, int(error[1]), error[2], answer.headers, BytesIO())
            is_folder = href.endswith("/") or response.find(_COLLECTION) is not None
            if href and not error and (is_folder or response.find(_EMPTY) is None):
                resources[_split_path(href, folder)] = is_folder
        return _list_children(resources, folder)

    @staticmethod
    def read_listing(answer: Any) -> Element:
        """Read an XML listing, of a large one the start.

        Raises:
            HttpAnswerError: it is no XML.
        """
        content = answer.read(MAX_LISTING_BYTES)
        is_cut = len(content) == MAX_LISTING_BYTES
        try:
            try:
                root = parse_xml(content, is_cut=is_cut)
            except XmlError:
                root = parse_xml(_repair_listing(content), is_cut=is_cut)
        except XmlError as error:
            raise HttpAnswerError(f"its listing {error}") from error
        if is_cut and len(root):
            root.remove(root[-1])
        return root

    def url_of(self, path: str) -> str:
        """Build the URL of a path below the prefix."""
        return f"{self.prefix}/{quote(path, errors='surrogateescape')}"

    def find_address(self, _method: str, url: str) -> str:
        """Return the address to which a request is sent, that of its URL."""
        return url

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        deadline: Deadline | None = None,
        body: ByteBody | None = None,
    ) -> Any:
        """Send a request and follow its redirects, also to plain servers."""
        return send_request(
            method,
            self.find_address(method, url),
            deadline or Deadline(RESPONSE_TIMEOUT_S),
            {"User-Agent": f"treehammer/{__version__}", **headers},
            body=body,
            token=self.token,
            context=self.tls,
        )

    def change(
        self, method: str, url: str, headers: Mapping[str, str] = {}, body: ByteBody | None = None
    ) -> None:
        """Send a request that changes a file."""
        with self.request(method, url, headers, Deadline.for_transfer(), body) as answer:
            if answer.status == 207:  # some of it failed, says WebDAV
                raise HttpAnswerError(f"it answers {method} with status 207: not all was done")
            answer.read(MAX_LISTING_BYTES)

    def describe_error(self, error: HTTPError) -> FileObservation:
        """Describe an answer with an error status."""
        body = error.read(MAX_ERROR_BYTES)
        status = 401 if _MISSING_CERTIFICATE.search(body) else error.code
        failure = {401: REFUSED, 403: REFUSED, 404: MISSING, 410: MISSING}.get(status, FAILED)
        remedy = _TLS_HINT if PLAIN_HTTP.search(body) else _HINTS_BY_STATUS.get(status, "")
        message = _describe_status(error, body)
        return FileObservation(failure=failure, message=message, remedy=remedy)

    @staticmethod
    def server_name(headers: Any) -> str:
        """Extract name and version of the server, such as ``XRootD v5.5.3``."""
        return str(headers.get("Server", "")).replace("/", " ", 1).strip()


def _repair_listing(content: bytes) -> bytes:
    """Escape characters of names that XML does not permit, and leave out prefixes of namespaces."""
    content = _PREFIX.sub(rb"\1", BARE_AMPERSAND.sub(b"&amp;", content))
    return _UNESCAPED.sub(lambda match: b"%%%02X" % ord(match[0]), content)


def _find_refusal(response: Element) -> re.Match[str] | None:
    """Find the error of a listed resource, or of all properties that it has (404: it has not)."""
    error = _ERROR_STATUS.match(response.findtext(_STATUS) or "")
    statuses = [status.text or "" for status in response.findall(_PROPERTY_STATUS)]
    errors = [_ERROR_STATUS.match(status) for status in statuses if " 404" not in status]
    return error or (errors[0] if errors and all(errors) else None)


def _split_path(address: str, folder: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Split the path of an address, which may be relative to a folder, into decoded names."""
    origin = _ORIGIN.match(address)
    path = address[origin.end() if origin else 0 :].partition("?")[0]
    path = unquote(path, errors="surrogateescape")  # names may be in any encoding
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    is_whole = origin or path.startswith("/") or names[: len(folder)] == folder
    return names if is_whole else (*folder, *names)


def _list_children(
    resources: Mapping[tuple[str, ...], bool], folder: tuple[str, ...]
) -> list[tuple[str, bool]]:
    """List names in a folder; servers list the folder itself first, last or not at all."""
    parents = {path[:-1] for path in resources if path}
    if folder not in resources and folder not in parents:
        # A server behind a proxy knows it by another path.
        paths = parents & resources.keys() or parents
        if len(resources) == 1:
            paths = {path for path in resources if path[-1:] == folder[-1:] and resources[path]}
        folder = min(paths or parents, key=len, default=folder)
    return [
        (path[-1], is_folder)
        for path, is_folder in resources.items()
        if path and path[:-1] == folder and path[-1] != ".."
    ]


def _describe_status(error: HTTPError, body: bytes) -> str:
    """Describe the status of an answer, with the server's text or the code of an object store."""
    content = body.decode("utf-8", "replace")
    line = content.strip().partition("\n")[0]
    challenge = error.headers.get("WWW-Authenticate") or ""
    description = _DESCRIPTION.search(challenge) or _TITLE.search(content)
    text = read_code(error.headers, body) if "<" in line else line
    text = unescape(description[1] if description else text).strip()[:200]
    return f"{error.code} {error.reason}" + (f": {text}" if text not in ("", error.reason) else "")


def _describe_connection_error(error: Exception) -> ProbeResult:
    """Describe why there is no whole answer; of a redirect or proxy, with the server that it names."""
    probe = _describe_cause(error)
    server = urlsplit(getattr(error, "filename2", None) or "")
    if not server.netloc:
        return probe
    is_proxy = server.scheme == "proxy"
    hint = "http_proxy, https_proxy and no_proxy" if is_proxy else "the redirect and its way"
    remedy = probe.remedy.replace("host, port and scheme of its prefix", hint)
    relation = "through proxy" if is_proxy else "redirects to"
    return ProbeResult(f"{relation} {server.netloc}: {probe.problem}", remedy)


def _describe_cause(error: Exception) -> ProbeResult:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLError):
        return _describe_tls_error(reason)
    if isinstance(reason, TimeoutError):
        problem = f"the server accepts connections: {reason}"
        return ProbeResult(problem, "Look into the server's log.")
    cause = getattr(reason, "strerror", None) or str(reason).strip() or type(reason).__name__
    is_early = isinstance(reason, IncompleteRead) or type(reason) is ConnectionResetError
    protocol = " as a web server" if isinstance(reason, (HTTPException, ValueError)) else ""
    problem = "its answer ends early" if is_early else f"does not answer{protocol}"
    cause = cause if cause.isprintable() else "it sends binary data"
    return ProbeResult(f"{problem}: {cause}", _ADDRESS_HINT)


def _describe_tls_error(error: ssl.SSLError) -> ProbeResult:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ProbeResult(
            f"its certificate is not trusted: {error.verify_message}",
            "Name the folder of the grid's authorities in X509_CERT_DIR."
            if error.verify_code in _UNKNOWN_AUTHORITY
            else "Check the host of the prefix and this machine's clock, or renew the certificate.",
        )
    return ProbeResult(
        f"no TLS connection: {error.reason or error}",
        "Check that the port speaks https (TLS 1.2 or newer), and your proxy in X509_USER_PROXY.",
    )


_DOOR = HttpDoor(HttpSession)
probe_server, stat_file, read_file = _DOOR.probe_server, _DOOR.stat_file, _DOOR.read_file
write_file, remove_file = _DOOR.write_file, _DOOR.remove_file
