"""HTTP clients: through aiohttp in a thread of its own, and by threads of the standard library.

The second opens and reads on nodes without aiohttp.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import os
import re
import select
import ssl
import threading
import zlib
from contextlib import suppress
from typing import Any, AsyncIterator, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from .....collectors.http_answers import ContentRange, RangeAnswerError, check_range
from .....collectors.http_requests import (
    REDIRECTS,
    BearerToken,
    Deadline,
    RedirectLimitError,
    TimedConnection,
    TimedTlsConnection,
    escape_url,
    follow_redirect,
)
from .....collectors.record import operation_steps as steps
from .....collectors.storage_access import make_tls_context
from ..operation import (
    Flight,
    Operation,
    StorageClient,
    ThreadBuffer,
    ThreadedClient,
    classify_os_error,
    iterate_blocks,
)
from .xrootd_client import classify_http_status

#: Seconds for which an unused connection stays open: longer than readers pause.
_KEEP_ALIVE_S = 120.0
_CLOSE_S = 5.0
#: Bytes of a body that are received at a time.
CHUNK = 1 << 18
#: Operation -> method of its request; GET for those that read.
METHODS: Mapping[str, str] = {
    steps.CONNECT: "OPTIONS",
    steps.OPEN: "HEAD",
    steps.STAT: "HEAD",
    steps.WRITE_FILE: "PUT",
    steps.CREATE: "PUT",
    steps.DELETE: "DELETE",
    steps.RMDIR: "DELETE",
    steps.MKDIR: "MKCOL",
}
_SUCCESSES: Mapping[str, Tuple[int, ...]] = {
    "OPTIONS": (200, 204, 405, 501),  # a server without OPTIONS is connected, too
    "HEAD": (200,),
    "PUT": (200, 201, 204),
    "DELETE": (200, 202, 204),
    "MKCOL": (201,),
}
#: Type of an error -> failure class of an answer that ends early or breaks rules; by name, as aiohttp is optional.
_ANSWER_FAILURES: Mapping[str, str] = {
    http.client.IncompleteRead.__name__: "reset",
    "ServerDisconnectedError": "reset",
    "ClientPayloadError": "reset",
    RangeAnswerError.__name__: "wrong-data",
    RedirectLimitError.__name__: "redirect-limit",
}
#: Type of a body with several parts.
_PARTS_TYPE = "multipart/byteranges"
_CONTENT_RANGE = re.compile(rb"^content-range:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
#: Bytes of headers and delimiter of each part of a body with several parts.
_MAX_PART_HEAD_BYTES = 2_000
#: Headers of all requests.
HEADERS: Mapping[str, str] = {"User-Agent": "treehammer", "Accept-Encoding": "identity"}


def classify_response(
    status: int, operation: Operation, methods: Mapping[str, str] = METHODS
) -> str:
    """Return the failure class of a response's status; '' for the expected one."""
    method = methods.get(operation.name, "GET")
    reading = (200,) if operation.name == steps.READ_FILE else (206,)
    if status in _SUCCESSES.get(method, reading):
        return ""
    if status < 300:  # such as the whole file instead of a range
        return "not-supported"
    return classify_http_status(status)


def classify_error(error: Exception) -> str:
    """Return the failure class of a request that got no complete answer."""
    # Some of aiohttp's errors are of the system, others are caused by one.
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, ssl.SSLError):  # whose number is none of the system
        return "credential"
    if isinstance(error, OSError) and isinstance(cause, OSError):
        return classify_os_error(cause)
    return _ANSWER_FAILURES.get(type(error).__name__, "server-error")


def load_token(url: str, env: Mapping[str, str]) -> BearerToken:
    """Load the token for a door: of https only, as object stores refuse a second credential."""
    token_file = env.get("BEARER_TOKEN_FILE")
    if not token_file or not url.startswith("https://"):
        return BearerToken()
    with open(token_file, encoding="ascii") as stream:
        return BearerToken.for_door(stream.read().strip(), url, env)


def make_range_header(operation: Operation) -> Dict[str, str]:
    """Make the header that asks for an operation's chunks; empty without any."""
    ranges = ",".join(f"{offset}-{offset + size - 1}" for offset, size in operation.chunks or ())
    return {"Range": f"bytes={ranges}"} if ranges else {}


def check_single_range(response: Any, operation: Operation) -> None:
    """Check that a response holds the operation's only chunk.

    Raises:
        RangeAnswerError: it holds something else.
    """
    ((offset, size),) = operation.chunks
    check_range(response.status, response.headers, offset, offset + size - 1)


def _has_parts(operation: Operation) -> bool:
    return operation.name != steps.READ_FILE and len(operation.chunks) != 1


def _find_checksum(operation: Operation) -> Optional[int]:
    """Find the checksum that the bytes of an operation must have; None for any."""
    return operation.file.adler32 if operation.name == steps.READ_FILE else None


def _judge_bytes(operation: Operation, read: int, adler32: Optional[int] = None) -> str:
    """Return the failure class of received bytes; '' if they are those of the operation."""
    is_correct = read == operation.bytes and _find_checksum(operation) in (None, adler32)
    return "" if is_correct else "wrong-data"


class HttpClient(StorageClient):
    """Client of ``http://`` and ``https://``; an open and a stat are HEAD requests.

    A connection is timed with an OPTIONS request, the first of its client.

    Each client has connections of its own, and reads from the server that answered its open.

    Raises:
        ImportError: aiohttp is not installed.
        OSError: certificates or token cannot be read.
    """

    unsupported = frozenset({steps.LOCATE, steps.CLOSE})
    #: Operation -> method of its request; GET for those that read.
    methods = METHODS

    def __init__(self, clients: int, timeout_s: float, url: str) -> None:
        super().__init__(clients, timeout_s)
        import aiohttp

        self._aiohttp = aiohttp
        self._tls = make_tls_context(os.environ)
        self._token = load_token(url, os.environ)
        self._sessions: Dict[int, Any] = {}
        self._servers: Dict[int, str] = {}
        self._tasks: Any = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        self._loop.call_soon_threadsafe(self._create_task, flight)

    def close(self) -> None:
        """Close all connections."""
        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for session in self._sessions.values():
            await session.close()

    def _create_task(self, flight: Flight) -> None:
        task = self._loop.create_task(self._perform(flight))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform(self, flight: Flight) -> None:
        server = ""
        flight.send()
        try:
            server, failure = await asyncio.wait_for(self.perform(flight), self.timeout_s)
        except asyncio.TimeoutError:
            failure = "timeout"
        except (OSError, self._aiohttp.ClientError, http.client.HTTPException, ValueError) as error:
            failure = classify_error(error)
        if failure:
            self._servers.pop(flight.operation.client, None)
        flight.end(server, failure)

    async def perform(self, flight: Flight) -> Tuple[str, str]:
        """Perform an operation; return server and failure class."""
        return await self.request(flight, flight.operation)

    def make_address(self, method: str, url: str) -> Any:
        """Return the address to which a request for a URL is sent."""
        return url

    async def request(self, flight: Flight, operation: Operation) -> Tuple[str, str]:
        """Send the request of an operation, or of a part of it; return server and failure class."""
        method = self.methods.get(operation.name, "GET")
        url, headers = operation.file.url, {**HEADERS, **make_range_header(operation)}
        if operation.name in (steps.MKDIR, steps.RMDIR):
            url += "/"  # some servers, such as nginx, know folders by it
        if operation.chunks:
            url = self._servers.get(operation.client, url)
        sends = operation.name in (steps.WRITE_FILE, steps.CREATE)
        if sends:
            # Without a length the body would be sent in chunks, which not every server takes.
            headers["Content-Length"] = str(operation.file.size)
        token, visited = self._token.at_door(operation.file.url), [url]
        while True:
            async with self._find_session(operation.client).request(
                method,
                self.make_address(method, url),
                headers={**headers, **token.make_header(url)},
                ssl=self._tls,
                allow_redirects=False,
                data=_send_content(flight) if sends else None,
            ) as response:
                if response.status not in REDIRECTS or "Location" not in response.headers:
                    return await self._evaluate(response, operation)
                url = follow_redirect(url, response.headers["Location"], visited)

    async def _evaluate(self, response: Any, operation: Operation) -> Tuple[str, str]:
        server = f"{response.url.host}:{response.url.port}"
        failure = classify_response(response.status, operation, self.methods)
        if failure:
            response.close()  # instead of reading a whole file, for example
            return server, failure
        if operation.name == steps.OPEN and operation.keep:
            self._servers[operation.client] = str(response.url)
        if operation.name in METHODS:
            return server, ""
        if _has_parts(operation):
            content_type = response.headers.get("Content-Type") or ""
            if not content_type.startswith(_PARTS_TYPE):
                response.close()
                return server, "not-supported"  # only the first of several ranges, for example
            body = await _read_parts(response, max_body_bytes(operation))
            return server, _judge_bytes(operation, count_parts(body, content_type, operation))
        if operation.name != steps.READ_FILE:
            check_single_range(response, operation)
        read, adler32 = await _read_body(response, _find_checksum(operation) is not None)
        return server, _judge_bytes(operation, read, adler32)

    def _find_session(self, client: int) -> Any:
        if client not in self._sessions:
            aiohttp = self._aiohttp
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
            # Otherwise aiohttp sends most requests again when a server closes their connection: a
            # reset would not be counted. There is no public option.
            session._retry_connection = False
            self._sessions[client] = session
        return self._sessions[client]


async def _send_content(flight: Flight) -> AsyncIterator[bytes]:
    file, adler32 = flight.operation.file, 1
    for block in iterate_blocks(file.number, file.size):
        adler32 = zlib.adler32(block, adler32)
        yield block
    flight.adler32 = adler32


async def _read_body(response: Any, checks: bool) -> Tuple[int, Optional[int]]:
    """Read a body; return its length, and its checksum if that is to be checked."""
    read, adler32 = 0, 1
    async for chunk in response.content.iter_chunked(CHUNK):
        read += len(chunk)
        if checks:
            adler32 = zlib.adler32(chunk, adler32)
    return read, adler32 if checks else None


async def _read_parts(response: Any, limit: int) -> bytes:
    blocks, read = [], 0
    async for chunk in response.content.iter_chunked(CHUNK):
        blocks.append(chunk)
        read += len(chunk)
        if read > limit:
            raise RangeAnswerError("it sends more than the requested parts")
    return b"".join(blocks)


def max_body_bytes(operation: Operation) -> int:
    """Return the largest body with the operation's chunks as parts."""
    return operation.bytes + (len(operation.chunks) + 1) * _MAX_PART_HEAD_BYTES


def count_parts(body: bytes, content_type: str, operation: Operation) -> int:
    """Count the bytes of all parts of a ``multipart/byteranges`` body: the operation's chunks.

    Raises:
        ValueError: the body is not of this form.
        RangeAnswerError: its parts are not the requested chunks.
    """
    boundary: Optional[re.Match[str]] = re.search(r'boundary="?([^";,\s]+)', content_type)
    if not content_type.startswith(_PARTS_TYPE) or boundary is None:
        raise ValueError(f"no {_PARTS_TYPE}")
    parts = _iterate_parts(body, b"--" + boundary[1].encode())
    # A server may send parts in another order, and join those that nearly touch.
    sent_ranges = join_ranges((part.first, part.last) for part in parts)
    for offset, size in operation.chunks:
        if not any(first <= offset and offset + size - 1 <= last for first, last in sent_ranges):
            raise RangeAnswerError("it sends other parts than the requested ones")
    return operation.bytes


def _iterate_parts(body: bytes, delimiter: bytes) -> Iterator[ContentRange]:
    """Iterate over the parts of a body, up to its closing delimiter."""
    position = body.find(delimiter)
    while position >= 0 and not body.startswith(b"--", position + len(delimiter)):
        end = body.index(b"\r\n\r\n", position) + 4
        content_ranges: List[bytes] = _CONTENT_RANGE.findall(body[position:end])
        if len(content_ranges) != 1:
            raise ValueError("a part without Content-Range")
        part = ContentRange.parse(content_ranges[0].decode("ascii", "replace"))
        size = part.last - part.first + 1
        # Skip the part by its length: its bytes may contain the delimiter.
        if not body.startswith(b"\r\n" + delimiter, end + size):
            raise ValueError("a part of another length than it states")
        yield part
        position = end + size + 2


def join_ranges(ranges: Iterable[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """Sort ranges and join those that touch or overlap."""
    joined: List[Tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


class PlainHttpClient(ThreadedClient):
    """Client of ``http://`` and ``https://`` with a thread and a connection for each client.

    It opens, stats and reads; the requests are those of ``HttpClient``.  A client sends one
    operation at a time, as in closed loops.

    Raises:
        OSError: certificates or token cannot be read.
    """

    unsupported = frozenset({steps.LOCATE, steps.CLOSE})

    def __init__(self, clients: int, timeout_s: float, url: str) -> None:
        super().__init__(clients, timeout_s)
        self._tls = make_tls_context(os.environ) if url.startswith("https") else None
        self._token = load_token(url, os.environ)
        self._connections: Dict[Tuple[int, str, str], TimedConnection] = {}
        self._servers: Dict[Tuple[int, str], str] = {}
        self._local = ThreadBuffer(CHUNK)

    def close(self) -> None:
        """Close all connections; threads that hang end with the process."""
        super().close()
        for connection in list(self._connections.values()):
            connection.close()

    def _perform(self, flight: Flight) -> None:
        operation, server = flight.operation, ""
        flight.send()
        try:
            server, failure = self._request(operation)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure = classify_error(error)
        if failure:
            self._forget(operation.client)
        flight.end(server, failure)

    def _forget(self, client: int) -> None:
        """Close a client's connections, which may hold the rest of an answer."""
        for key in [key for key in self._connections if key[0] == client]:
            self._connections.pop(key).close()
        for name in [name for name in self._servers if name[0] == client]:
            del self._servers[name]

    def _request(self, operation: Operation) -> Tuple[str, str]:
        """Perform an operation; return server and failure class."""
        origin = url = operation.file.url
        if operation.chunks:
            url = self._servers.get((operation.client, origin), origin)
        token, visited = self._token.at_door(origin), [url]
        deadline = Deadline(self.timeout_s)
        while True:
            parts = urlsplit(url)
            connection = self._find_connection(operation.client, parts.scheme, parts.netloc)
            connection.deadline = deadline
            headers = {**HEADERS, **make_range_header(operation), **token.make_header(url)}
            target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
            method = METHODS.get(operation.name, "GET")
            connection.request(method, escape_url(target), headers=headers)
            response = connection.getresponse()
            location = response.headers.get("Location")
            if response.status not in REDIRECTS or not location:
                if operation.name == steps.OPEN and operation.keep:
                    self._servers[operation.client, origin] = url
                return f"{parts.hostname}:{connection.port}", self._evaluate(response, operation)
            response.read(CHUNK)
            url = follow_redirect(url, location, visited)

    def _evaluate(self, response: http.client.HTTPResponse, operation: Operation) -> str:
        failure = classify_response(response.status, operation)
        if failure:
            return failure
        if operation.name in METHODS:
            response.read(CHUNK)
            return ""
        if _has_parts(operation):
            content_type = response.headers.get("Content-Type", "")
            if not content_type.startswith(_PARTS_TYPE):
                return "not-supported"  # only the first of several ranges, for example
            body = response.read(max_body_bytes(operation) + 1)
            return _judge_bytes(operation, count_parts(body, content_type, operation))
        if operation.name != steps.READ_FILE:
            check_single_range(response, operation)
        has_checksum = _find_checksum(operation) is not None
        read, adler32 = self._read_body(response, checks=has_checksum)
        if response.length:
            return "reset"  # the connection ended within the body
        return _judge_bytes(operation, read, adler32)

    def _read_body(self, response: http.client.HTTPResponse, *, checks: bool) -> Tuple[int, int]:
        """Read a body; return its length, and its checksum if that is to be checked."""
        buffer, read, adler32 = memoryview(self._local.buffer), 0, 1
        while True:
            count = response.readinto(buffer)
            if not count:
                return read, adler32
            read += count
            if checks:
                adler32 = zlib.adler32(buffer[:count], adler32)

    def _find_connection(self, client: int, scheme: str, address: str) -> TimedConnection:
        key = client, scheme, address
        if key not in self._connections:
            deadline = Deadline(self.timeout_s)
            if scheme == "https":
                context = self._tls or make_tls_context(os.environ)
                connection: TimedConnection = TimedTlsConnection(address, deadline, context=context)
            else:
                connection = TimedConnection(address, deadline)
            self._connections[key] = connection
        elif _is_closed(self._connections[key].sock):
            self._connections[key].close()  # the next request connects again
        return self._connections[key]


def _is_closed(sock: Any) -> bool:
    """Return whether a server has closed an idle connection, as some do after seconds."""
    poll = select.poll()
    if sock is not None:
        poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
