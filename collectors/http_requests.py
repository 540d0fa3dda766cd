"""HTTP requests with a total deadline, and tokens that stay at their door.

Every HTTP client of the code sends its requests through this module, those of the worker included.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import fnmatch
import http.client
import io
import math
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union
from urllib.parse import SplitResult, quote, urljoin, urlsplit

#: Variable with the hosts that get a door's token on a redirect: ``DOOR=HOST,HOST;DOOR=HOST``.
TOKEN_POOLS_VARIABLE = "TREEHAMMER_TOKEN_POOLS"  # noqa: S105  # a name
#: Statuses of a redirect, and redirects of one request.
REDIRECTS, MAX_REDIRECTS = (301, 302, 303, 307, 308), 8
#: Time of a transfer: seconds until it begins, and bytes per second that it must keep up.
TRANSFER_START_S, MIN_BYTES_PER_S = 60.0, 64 * 1024
#: Bytes per second at which a server reads what it received, before it answers.
_CHECK_BYTES_PER_S = 50e6
#: Bytes that are sent at a time: a record of TLS, for which one wait counts.
_SEND_BYTES = 1 << 14
#: Seconds to wait for a server's consent to a body.
_CONSENT_WAIT_S = 2.0
#: Start and end of an answer that another one follows, such as a consent, and the most of them.
_INTERIM, _CONSENT, _HEAD_END = rb"HTTP/1\.\d 1\d\d", b"100", re.compile(rb"\n\r?\n")
_MAX_INTERIM, _MAX_LINE_BYTES = 20, 65_536
#: Methods that a 303 does not turn into another one.
_READING_METHODS = ("GET", "HEAD", "OPTIONS", "PROPFIND")
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: Signs of an address that are sent as they are.
_URL_SIGNS = "%/?#:@!$&'()*+,;=~[]"

ByteBody = Union[bytes, Callable[[], BinaryIO]]


class HttpAnswerError(http.client.HTTPException):
    """An answer that breaks the rules of HTTP; the message names the rule."""


class RedirectLimitError(HttpAnswerError):
    """Redirects in a circle, or too many of them."""


class Deadline:
    """Total time of a request, from its start to the last byte of the answer.

    Args:
        limit_s: seconds until the answer begins, for an upload until all is sent and answered.
        rest_s: seconds from the answer's first byte to its last; by default the rest of ``limit_s``.
        bytes_per_s: bytes per second of a transfer; each byte in time prolongs the deadline, and
            no silence lasts longer than ``limit_s`` and the time to check what was transferred.
    """

    def __init__(
        self, limit_s: float, rest_s: Optional[float] = None, bytes_per_s: float = 0.0
    ) -> None:
        self._rest_s = rest_s
        self._limit_s, self._bytes_per_s = limit_s, bytes_per_s
        self._transferred = 0
        self._start = time.monotonic()
        self._end = self._start + limit_s
        self._answer_end = math.inf
        self._received: Optional[int] = None

    @classmethod
    def for_transfer(cls) -> Deadline:
        """Make the deadline of a transfer of any size."""
        return cls(TRANSFER_START_S, bytes_per_s=MIN_BYTES_PER_S)

    def seconds_left(self) -> float:
        """Return the seconds left.

        Raises:
            TimeoutError: the deadline has passed.
        """
        remaining_s = min(self._end, self._answer_end) - time.monotonic()
        if remaining_s <= 0:
            raise self._make_error()
        return remaining_s

    def begin_request(self) -> None:
        """Begin a request, which may be the target of a redirect."""
        self._answer_end, self._received = math.inf, None

    @contextmanager
    def bound(self, sock: Any, wait_s: float = math.inf) -> Iterator[None]:
        """Let the waits of a socket within the block end at the deadline, or after ``wait_s``.

        Raises:
            TimeoutError: the deadline has passed.
        """
        sock.settimeout(min(self.seconds_left(), wait_s))
        try:
            yield
        except socket.timeout:  # not the same as TimeoutError in Python 3.9
            raise self._make_error() from None

    def count_received(self, count: int) -> None:
        """Count bytes of the answer."""
        if self._received is None and self._rest_s is not None:
            self._answer_end = time.monotonic() + self._rest_s
        self._received = count + (self._received or 0)
        self.count_transferred(count)

    def count_transferred(self, count: int) -> None:
        """Count bytes of the request, or of the answer."""
        if self._bytes_per_s:
            self._transferred += count
            silence_s = self._limit_s + self._transferred / _CHECK_BYTES_PER_S
            self._end = min(self._end + count / self._bytes_per_s, time.monotonic() + silence_s)

    def _make_error(self) -> TimeoutError:
        elapsed = f"{time.monotonic() - self._start:.0f} s"
        if self._received is None:
            return TimeoutError(f"no answer within {elapsed}")
        return TimeoutError(f"the answer was not complete after {elapsed}: {self._received} bytes")


@dataclass(frozen=True)
class BearerToken:
    """A token for the server of a URL; it is sent to no other, and only over TLS.

    Attributes:
        token: the token, '' for none.
        url: a URL of the server.
        pools: other hosts that may get it, ``HOST`` or ``HOST:PORT``, also with ``*``.
    """

    token: str = field(default="", repr=False)
    url: str = ""
    pools: Tuple[str, ...] = ()

    @classmethod
    def for_door(cls, token: str, url: str, env: Mapping[str, str]) -> BearerToken:
        """Make the token of a door, whose pools are named in ``env``."""
        origin = _parse_origin(url)
        for entry in env.get(TOKEN_POOLS_VARIABLE, "").split(";"):
            door, _, pools = entry.partition("=")
            if origin is not None and _parse_origin(f"https://{door}") == origin:
                return cls(token, url, tuple(pools.split(",")))
        return cls(token, url)

    def may_reach(self, url: str) -> bool:
        """Return whether a request to ``url`` may carry the token."""
        target, door = _parse_origin(url), _parse_origin(self.url)
        if target is None or door is None or target[0] != "https":
            return False
        return target == door or any(_is_pool(target, pool) for pool in self.pools)

    def at_door(self, url: str) -> BearerToken:
        """Return the token for another door of the same job."""
        return self if not self.token else replace(self, url=url)

    def make_header(self, url: str) -> Dict[str, str]:
        """Make the header for a request to ``url``; empty if it must not carry the token."""
        if not self.token or not self.may_reach(url):
            return {}
        return {"Authorization": f"Bearer {self.token}"}


#: Requests without a token.
NO_TOKEN = BearerToken()


def format_token_pools(pools_by_url: Mapping[str, Tuple[str, ...]]) -> str:
    """Format the pools of doors as :data:`TOKEN_POOLS_VARIABLE` carries them."""
    pools: Dict[str, List[str]] = {}
    for url, names in pools_by_url.items():
        if names:
            pools.setdefault(urlsplit(url).netloc.rpartition("@")[2], []).extend(names)
    return ";".join(f"{door}={','.join(dict.fromkeys(names))}" for door, names in pools.items())


def mask_credentials(text: str) -> str:
    """Remove the credentials of any URL in a text."""
    return re.sub(r"://[^/\s]*@", "://***@", text)


def same_origin(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    origin = _parse_origin(url)
    return origin is not None and origin == _parse_origin(other)


@lru_cache(maxsize=1024)
def _parse_origin(url: str) -> Optional[Tuple[str, str, int]]:
    """Return scheme, host and port of a URL; None for an unusable one."""
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def _is_pool(origin: Tuple[str, str, int], pool: str) -> bool:
    """Return whether an origin is a pool; one without a port permits any."""
    _, host, port = origin
    name, separator, port_text = pool.lower().rpartition(":")
    if separator and port_text.isdigit():
        return port == int(port_text) and fnmatch.fnmatchcase(host, name.strip("[]"))
    return fnmatch.fnmatchcase(host, pool.lower().strip("[]"))


def send_request(
    method: str,
    url: str,
    deadline: Deadline,
    headers: Mapping[str, str] = {},
    *,
    body: Optional[ByteBody] = None,
    token: BearerToken = NO_TOKEN,
    context: Optional[ssl.SSLContext] = None,
    follows: bool = True,
) -> Any:
    """Send a request, follow redirects, and return the answer as ``urllib`` does.

    The answer's reads are bound by the deadline as well.  Proxies are those of the environment.

    Args:
        method: method, which redirects do not change.
        url: http or https URL.
        deadline: total time of request, redirects and answer.
        headers: headers of all requests.
        body: content, or a function that opens it for each request.
        token: token, sent to its own server and pools only.
        context: TLS settings.
        follows: whether redirects are followed; otherwise they are errors.

    Raises:
        urllib.error.HTTPError: status of 400 and more, or a redirect that is not followed.
        HttpAnswerError: redirects without end, or to another protocol; a compressed answer.
        OSError: the server does not answer, or not in time.
    """
    opener = urllib.request.build_opener(_NoRedirect(), _TimedHandler(deadline, context))
    visited = [url]
    # A server that redirects an upload wants its body at the other server only.
    expects_consent = callable(body)
    while True:
        deadline.begin_request()
        expect = {"Expect": "100-continue"} if expects_consent else {}
        with _open_body(body) as content:
            request = _build_request(method, url, {**headers, **expect}, content, token)
            host = request.host
            try:
                answer = opener.open(request, timeout=deadline.seconds_left())
                coding = answer.headers.get("Content-Encoding", "").lower()
                if coding not in ("gzip", "x-gzip", "deflate", "br", "zstd"):
                    return answer
                answer.close()
                raise HttpAnswerError(
                    f"it compresses its answer unasked (Content-Encoding: {coding})"
                )
            except urllib.error.HTTPError as error:
                if error.code == 417 and expects_consent:
                    error.close()
                    expects_consent = False
                    continue
                # An object store that names the bucket's region wants another signature.
                is_other_region = error.headers.get("x-amz-bucket-region")
                is_redirect = error.code in REDIRECTS and error.headers.get("Location")
                if not follows or not is_redirect or is_other_region or method == "POST":
                    raise
                error.close()
                url = follow_redirect(url, error.headers["Location"], visited)
                if error.code == 303 and method not in _READING_METHODS:
                    method, body, expects_consent = "GET", None, False
            except OSError as error:  # a ``filename`` would replace texts of errors without number
                if len(visited) > 1:
                    # The server that fails is not the door.  Addresses may hold signatures.
                    error.filename2 = urljoin(url, "/")
                elif request.host != host:
                    error.filename2 = f"proxy://{request.host}"
                raise


def escape_url(url: str) -> str:
    """Escape the blanks, umlauts and other signs of an address that no request may hold."""
    return quote(url, safe=_URL_SIGNS, errors="surrogateescape")


def _build_request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: Union[bytes, BinaryIO, None],
    token: BearerToken,
) -> urllib.request.Request:
    """Build a request with the token, which no redirect takes along."""
    request = urllib.request.Request(  # noqa: S310 - schemes are checked
        escape_url(url), data=content, headers={**headers}, method=method
    )
    for name, value in token.make_header(url).items():
        request.add_unredirected_header(name, value)
    return request


@contextmanager
def _open_body(body: Optional[ByteBody]) -> Iterator[Union[bytes, BinaryIO, None]]:
    """Open a body for one request, and close it afterwards."""
    if callable(body):
        with closing(body()) as stream:
            yield stream
    else:
        yield body


def follow_redirect(url: str, location: str, visited: List[str]) -> str:
    """Return the target of a redirect, and add it to the visited ones.

    Raises:
        HttpAnswerError: redirects without end, or to another protocol.
    """
    try:
        target = re.sub(r"^(\w+://)[^/?#]*@", r"\1", urljoin(url, location))  # no passwords
    except ValueError:  # such as brackets without an address
        target = location
    if _parse_origin(target) is None or urlsplit(target).scheme not in _DEFAULT_PORTS:
        raise HttpAnswerError(f"it redirects to {target!r}, which is no http or https URL")
    if target in visited:
        raise RedirectLimitError(f"it redirects in a circle, to {target}")
    if len(visited) > MAX_REDIRECTS:
        raise RedirectLimitError(f"it redirects more than {MAX_REDIRECTS} times")
    visited.append(target)
    return target


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that reports redirects as errors instead of following them, or looking at them."""

    def http_error_302(self, *_: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_302  # type: ignore[assignment]
    http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


class _TimedHandler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    def __init__(self, deadline: Deadline, context: Optional[ssl.SSLContext]) -> None:
        super().__init__(context=context)
        self._deadline, self._tls = deadline, context

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(lambda host, **_: TimedConnection(host, self._deadline), request)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(
            lambda host, **_: TimedTlsConnection(host, self._deadline, context=self._tls), request
        )


def connect_socket(address: Tuple[str, int], deadline: Deadline) -> socket.socket:
    """Connect to the first address of a host that answers; all of them share the deadline."""
    failure: OSError = OSError("the host has no address")
    for family, kind, protocol, _name, target in socket.getaddrinfo(
        *address, 0, socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        try:
            with deadline.bound(connection):
                connection.connect(target)
            # The handshake of TLS is bound by this, too.
            connection.settimeout(deadline.seconds_left())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    raise failure


class TimedConnection(http.client.HTTPConnection):
    """Connection whose waits end at the ``deadline`` of this and all further requests."""

    def __init__(
        self, host: str, deadline: Deadline, port: Optional[int] = None, **options: Any
    ) -> None:
        super().__init__(host, port, **options)
        self._reader: Any = None
        self.deadline = deadline
        self._create_connection = lambda address, *_: connect_socket(address, self.deadline)
        self.response_class = self._make_response  # type: ignore[assignment]

    def close(self) -> None:
        """Close the connection, also one whose answer was never read."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        super().close()

    def _make_response(self, sock: Any, *arguments: Any, **options: Any) -> _TimedResponse:
        reader, self._reader = self._reader or open_reader(sock, self.deadline), None
        return _TimedResponse(reader, sock, *arguments, **options)

    def send(self, data: Any) -> None:
        """Send bytes."""
        if self.sock is None:
            self.connect()
        view = memoryview(data)
        for start in range(0, len(view), _SEND_BYTES):
            block = view[start : start + _SEND_BYTES]
            with self.deadline.bound(self.sock):
                self.sock.sendall(block)
            self.deadline.count_transferred(len(block))

    def endheaders(self, message_body: Any = None, *, encode_chunked: bool = False) -> None:
        """Send the headers and the body; a file only once the server agrees, or says nothing."""
        super().endheaders(encode_chunked=encode_chunked)
        if not hasattr(message_body, "read"):
            if message_body:
                self.send(message_body)
            return
        self._reader = open_reader(self.sock, self.deadline)
        with suppress(TimeoutError):
            if self._reader.raw.await_consent():
                return
        # The server may have answered before it got all of the body.
        with suppress(BrokenPipeError, ConnectionResetError):
            while block := message_body.read(_SEND_BYTES):
                self.send(block)


class TimedTlsConnection(TimedConnection, http.client.HTTPSConnection):
    """TLS connection whose waits end at the deadline; ``context`` has its settings."""


class _TimedResponse(http.client.HTTPResponse):
    """Response that is read from a reader with a deadline."""

    def __init__(self, reader: Any, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = reader

    def _read_status(self) -> Tuple[str, int, str]:
        """Read the status of the final answer; ``http.client`` skips no interim one but 100."""
        for _ in range(_MAX_INTERIM):
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if not 100 <= status < 200:
                return version, status, reason
            while self.fp.readline(_MAX_LINE_BYTES).strip():
                pass
        raise HttpAnswerError(f"it sends {_MAX_INTERIM} interim answers and no other")


class _TimedReader(io.RawIOBase):
    """Bytes of a socket; no read outlasts the deadline."""

    def __init__(self, sock: Any, deadline: Deadline) -> None:
        super().__init__()
        self._sock, self._deadline = sock, deadline
        self._received = b""
        # The socket stays open until this is closed.
        self._holder = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        if self._received:
            start = self._received[: len(buffer)]
            buffer[: len(start)] = start
            self._received = self._received[len(start) :]
            return len(start)
        with self._deadline.bound(self._sock):
            count: int = self._sock.recv_into(buffer)
        self._deadline.count_received(count)
        return count

    def await_consent(self) -> bool:
        """Wait for the server's consent to a body; return whether it sent its answer instead.

        What it received is read again later.

        Raises:
            TimeoutError: nothing came in time.
        """
        end = time.monotonic() + _CONSENT_WAIT_S
        while True:
            head = _HEAD_END.search(self._received)
            if head:
                if not re.match(_INTERIM, self._received):
                    return True
                is_consent = self._received.split(None, 2)[1] == _CONSENT
                self._received = self._received[head.end() :]
                if is_consent:
                    return False
                continue
            with self._deadline.bound(self._sock, max(0.001, end - time.monotonic())):
                received = self._sock.recv(_MAX_LINE_BYTES)
            self._deadline.count_received(len(received))
            self._received += received
            if not received:
                return True

    def close(self) -> None:
        self._holder.close()
        super().close()


def make_timed_response(
    deadline: Deadline, sock: Any, *arguments: Any, **options: Any
) -> http.client.HTTPResponse:
    """Make a response of another library's connection, whose reads end at a deadline."""
    return _TimedResponse(open_reader(sock, deadline), sock, *arguments, **options)


def open_reader(sock: Any, deadline: Deadline) -> Any:
    """Open a buffered reader of a socket, whose waits end at a deadline."""
    return io.BufferedReader(_TimedReader(sock, deadline), 1 << 16)
