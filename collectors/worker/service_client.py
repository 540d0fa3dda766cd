"""Client of the results service: one request and the meaning of its response.

Redirects are not followed, so that the token reaches the service's own host only.  Proxies are
taken from the environment (``https_proxy``, ``no_proxy``); TLS passes through them end to end.
"""

from __future__ import annotations

import email.utils
import gzip
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence
from urllib.parse import urlsplit

from ..http_requests import (
    MIN_BYTES_PER_S,
    Deadline,
    TimedConnection,
    TimedTlsConnection,
    send_request,
)
from ..job_spec import MEASUREMENTS_PATH
from ..json_documents import decode_json

#: Bytes of a response that are read.
_MAX_RESPONSE_BYTES = 1_000_000
#: Characters of a response's own reason that are repeated.
_MAX_REASON_LENGTH = 300
#: A token of any kind, in one word, as a header can carry it.
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/=-]{1,8192}")


class ServiceConfigError(ValueError):
    """Unusable token or certificate file; the message repeats no content of either."""


@dataclass(frozen=True)
class ServiceResponse:
    """Result of a request.

    Attributes:
        status: HTTP status; 0 without a response.
        reason: one sentence on the problem, '' for success.
        document: JSON object of the response, empty for any other body.
        retry_after_s: seconds that the service requires clients to wait.
        permanent: whether the same request would fail again.
    """

    status: int
    reason: str = ""
    document: Dict[str, Any] = field(default_factory=dict)
    retry_after_s: float = 0.0
    permanent: bool = False

    @property
    def stored(self) -> bool:
        """Whether the service confirmed that it stored the records."""
        return self.status == 200 and not self.reason

    @property
    def conflicting_ids(self) -> List[str]:
        """Identities that the service has stored with other content."""
        return [str(item) for item in self.document.get("conflicting", [])]

    def find_refused(self, record_count: int) -> Dict[int, str]:
        """Find the refused ones of ``sent`` records: index -> reasons."""
        refused: Dict[int, str] = {}
        errors = self.document.get("errors") if self.status == 422 else None
        for error in errors if isinstance(errors, list) else ():
            index = error.get("index") if isinstance(error, dict) else None
            if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < record_count:
                reasons = error.get("reasons")
                texts = reasons if isinstance(reasons, list) else [reasons]
                refused[index] = "; ".join(map(str, texts))[:_MAX_REASON_LENGTH]
        return refused


class ServiceEndpoint:
    """The address of a results service, with a token.

    Args:
        url: URL of the service.
        token: bearer token.
        ca: file with certificate authorities that sign the service's certificate; '' for the node's.

    Raises:
        ServiceConfigError: the token is malformed, or ``ca`` cannot be read.
    """

    def __init__(self, url: str, token: str, ca: str = "") -> None:
        if not _TOKEN_PATTERN.fullmatch(token):
            raise ServiceConfigError("no valid token for the service")
        self.url = url.rstrip("/")
        self._token = token
        self._tls = make_service_context(ca) if urlsplit(url).scheme == "https" else None

    def post(self, records: Sequence[str], timeout_s: float) -> ServiceResponse:
        """Send records, each the text of a JSON object, within ``timeout_s`` on a fast line."""
        body = '{"measurements": [' + ", ".join(records) + "]}"
        return self.send(MEASUREMENTS_PATH, body, len(records), timeout_s)

    def send(self, path: str, body: str, items: int, timeout_s: float) -> ServiceResponse:
        """Send a JSON object with ``items`` items, which the response must account for."""
        content = gzip.compress(body.encode(), 6, mtime=0)
        try:
            # A slow line may take longer for a large body, as long as it goes on.
            deadline = Deadline(timeout_s, bytes_per_s=MIN_BYTES_PER_S)
            try:
                # The service may speak plain HTTP on this machine; redirects are not followed.
                reply = send_request(
                    "POST",
                    self.url + path,
                    deadline,
                    {**_make_headers(self._token), "Content-Encoding": "gzip"},
                    body=content,
                    context=self._tls,
                    follows=False,
                )
            except urllib.error.HTTPError as answer:
                reply = answer
            with reply:
                return _parse_response(
                    reply.code,
                    reply.headers,
                    _read_body(reply),
                    lambda document: _covers_all_items(document, items),
                )
        except urllib.error.URLError as error:
            reason = error.reason
            permanent = isinstance(reason, ssl.SSLCertVerificationError)
            message = f"it cannot be reached: {describe_network_error(reason)}"
            return ServiceResponse(0, message, permanent=permanent)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return ServiceResponse(0, f"it does not answer: {describe_network_error(error)}")

    @contextmanager
    def open_session(self, timeout_s: float) -> Iterator[ServiceSession]:
        """Open a connection, closed at the end; ``timeout_s`` bounds each exchange.

        Raises:
            ConnectionError: the service cannot be reached; the message is one sentence.
        """
        with closing(self._create_connection(timeout_s)) as connection:
            try:
                connection.connect()
            except OSError as error:
                message = f"it cannot be reached: {describe_network_error(error)}"
                raise ConnectionError(message) from error
            yield ServiceSession(connection, urlsplit(self.url).path, self._token, timeout_s)

    def _create_connection(self, timeout_s: float) -> TimedConnection:
        """Create a connection to the service, through the node's proxy for TLS if it has one."""
        address = urlsplit(self.url)
        host, port = address.hostname or "", address.port
        deadline = Deadline(timeout_s)
        if self._tls is None:
            return TimedConnection(host, deadline, port)
        proxy = urlsplit(urllib.request.getproxies().get("https", ""))
        if not proxy.hostname or urllib.request.proxy_bypass(host):
            return TimedTlsConnection(host, deadline, port, context=self._tls)
        connection = TimedTlsConnection(proxy.hostname, deadline, proxy.port, context=self._tls)
        connection.set_tunnel(host, port)
        return connection


class ServiceSession:
    """An open connection to a service: no request waits for its set-up, so its time is one round trip."""

    def __init__(
        self, connection: TimedConnection, base: str, token: str, timeout_s: float
    ) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._base = base
        self._headers = _make_headers(token)

    def exchange(self, path: str, body: str, expected: Sequence[str]) -> ServiceResponse:
        """Send a JSON object and return the response, an object with the expected members.

        Raises:
            ConnectionError: the connection failed.
        """
        self._connection.deadline = Deadline(self._timeout_s)
        try:
            self._connection.request("POST", self._base + path, body.encode(), self._headers)
            reply = self._connection.getresponse()
            content = _read_body(reply)
        except (OSError, http.client.HTTPException) as error:
            message = f"it does not answer: {describe_network_error(error)}"
            raise ConnectionError(message) from error
        return _parse_response(reply.status, reply.headers, content, {*expected}.issubset)


def _make_headers(token: str) -> Dict[str, str]:
    return {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}


def make_service_context(ca: object) -> ssl.SSLContext:
    """Make a context that trusts the authorities of a file alone; without one those of the system.

    Raises:
        ServiceConfigError: the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=str(ca) if ca else None)
    except (OSError, ValueError) as error:
        plain = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
        reason = getattr(error, "strerror", "") if plain else "it contains no certificates"
        raise ServiceConfigError(
            f"{ca}: cannot be used to verify the service ({reason})"
        ) from error


def _read_body(reply: Any) -> bytes:
    """Read the body of a reply, up to a limit.

    Raises:
        http.client.IncompleteRead: the connection ended within the body. http.client accepts that
            if a limit is given, and a part of an answer would be taken for another service's.
    """
    body: bytes = reply.read(_MAX_RESPONSE_BYTES)
    if reply.length and len(body) < _MAX_RESPONSE_BYTES:
        raise http.client.IncompleteRead(body, reply.length)
    return body


def describe_network_error(reason: Any) -> str:
    """Describe why a service does not answer, in a few words."""
    if isinstance(reason, TimeoutError):
        return "it took too long"
    text = getattr(reason, "verify_message", None) or getattr(reason, "strerror", None)
    # OpenSSL's codes of an unknown authority, such as of a self-signed certificate.
    if getattr(reason, "verify_code", 0) in (18, 19, 20, 21):
        text = f"{text} (name its authority in service_ca_file)"
    return " ".join(str(text or reason or type(reason).__name__).split())[:_MAX_REASON_LENGTH]


def _parse_response(
    status: int, headers: Any, body: bytes, is_answer: Callable[[Dict[str, Any]], bool]
) -> ServiceResponse:
    document = _parse_object(body)
    if status == 200:
        # A proxy or captive portal may answer 200 as well.
        if is_answer(document):
            return ServiceResponse(status, "", document)
        return ServiceResponse(
            status, "the server at this address is not a Treehammer service", permanent=True
        )
    reason = " ".join(str(document.get("error") or "").split())[:_MAX_REASON_LENGTH]
    if 300 <= status < 400:
        target = urlsplit(headers.get("Location") or "").netloc
        reason = f"it redirects{f' to {target}' if target else ''}, which is not followed"
    description = http.client.responses.get(status, "")
    return ServiceResponse(
        status,
        f"{reason} ({status})" if reason else f"it answers {status} {description}".rstrip(),
        document,
        _parse_retry_after(headers.get("Retry-After")),
        300 <= status < 500 and status not in (408, 425, 429),
    )


def _parse_object(body: bytes) -> Dict[str, Any]:
    """Parse a JSON object; empty for any other text."""
    try:
        document = decode_json(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _covers_all_items(document: Dict[str, Any], record_count: int) -> bool:
    """Return whether a response accounts for all items sent."""
    counts = [document.get("new"), document.get("known"), document.get("changed", 0)]
    conflicting = document.get("conflicting", [])
    if not all(isinstance(count, int) for count in counts) or not isinstance(conflicting, list):
        return False
    return bool(sum(count for count in counts if count) + len(conflicting) >= record_count)


def _parse_retry_after(text: Optional[str]) -> float:
    """Parse ``Retry-After`` to seconds; 0 when absent or unreadable."""
    if not text:
        return 0.0
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0
