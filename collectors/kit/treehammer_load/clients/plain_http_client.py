"""HTTP client of the standard library, for nodes without aiohttp: opens and reads, by threads."""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, Tuple
from urllib.parse import urlsplit

from ....http_requests import (
    REDIRECTS,
    Deadline,
    HttpAnswerError,
    RangeAnswerError,
    TimedConnection,
    TimedTlsConnection,
    follow_redirect,
)
from ....record.operation_steps import CLOSE, LOCATE, OPEN, READ_FILE
from ....tls_context import make_tls_context
from ..operation import Flight, Operation, StorageClient, classify_os_error
from .http_client import (
    CHUNK,
    HEADERS,
    METHODS,
    check_single_range,
    classify_response,
    count_parts,
    load_token,
    make_range_header,
    max_body_bytes,
)


class PlainHttpClient(StorageClient):
    """Client of ``http://`` and ``https://`` with a thread and a connection for each client.

    It opens, stats and reads; the requests are those of ``HttpClient``.  A client sends one
    operation at a time, as in closed loops.

    Raises:
        OSError: certificates or token cannot be read.
    """

    unsupported = frozenset({LOCATE, CLOSE})

    def __init__(self, clients: int, timeout_s: float, url: str) -> None:
        super().__init__(clients, timeout_s)
        self._tls = make_tls_context(os.environ) if url.startswith("https") else None
        self._token = load_token(url, os.environ)
        self._connections: Dict[Tuple[int, str, str], TimedConnection] = {}
        self._servers: Dict[Tuple[int, str], str] = {}
        self._pool = ThreadPoolExecutor(clients)
        self._local = threading.local()

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        self._pool.submit(self._perform, flight)

    def close(self) -> None:
        """Close all connections; threads that hang end with the process."""
        self._pool.shutdown(wait=False)
        for connection in list(self._connections.values()):
            connection.close()

    def _perform(self, flight: Flight) -> None:
        operation, server = flight.operation, ""
        flight.send()
        try:
            server, failure = self._request(operation)
        except (ssl.SSLError, ssl.CertificateError):
            failure = "credential"
        except RangeAnswerError:
            failure = "wrong-data"
        except OSError as error:  # includes connections that the server closed
            failure = classify_os_error(error)
        except (http.client.HTTPException, HttpAnswerError, ValueError):
            failure = "server-error"
        if failure:
            self._forget(operation.client)
            flight.fail(failure, server)
        else:
            flight.succeed(server)

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
            connection.use_deadline(deadline)
            headers = {**HEADERS, **make_range_header(operation), **token.make_header(url)}
            target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
            connection.request(METHODS.get(operation.name, "GET"), target, headers=headers)
            response = connection.getresponse()
            location = response.headers.get("Location")
            if response.status not in REDIRECTS or not location:
                if operation.name == OPEN and operation.keep:
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
        is_whole = operation.name == READ_FILE
        if is_whole or len(operation.chunks) == 1:
            if not is_whole:
                check_single_range(response, operation)
            expected = operation.file.adler32 if is_whole else None
            read, adler32 = self._read_body(response, checks=expected is not None)
            if response.length:
                return "reset"  # the connection ended within the body
            is_correct = read == operation.bytes and expected in (None, adler32)
            return "" if is_correct else "wrong-data"
        content_type = response.headers.get("Content-Type", "")
        if not content_type.startswith("multipart/byteranges"):
            return "not-supported"  # only the first of several ranges, for example
        body = response.read(max_body_bytes(operation) + 1)
        read = count_parts(body, content_type, operation)
        return "" if read == operation.bytes else "wrong-data"

    def _read_body(self, response: http.client.HTTPResponse, *, checks: bool) -> Tuple[int, int]:
        """Read a body; return its length, and its checksum if that is to be checked."""
        buffer, read, adler32 = memoryview(self._borrow_buffer()), 0, 1
        while True:
            count = response.readinto(buffer)
            if not count:
                return read, adler32
            read += count
            if checks:
                adler32 = zlib.adler32(buffer[:count], adler32)

    def _borrow_buffer(self) -> bytearray:
        """Return this thread's buffer."""
        buffer = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = bytearray(CHUNK)
        assert isinstance(buffer, bytearray)
        return buffer

    def _find_connection(self, client: int, scheme: str, address: str) -> TimedConnection:
        key = client, scheme, address
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = self._connect(scheme, address)
        return connection

    def _connect(self, scheme: str, address: str) -> TimedConnection:
        deadline = Deadline(self.timeout_s)
        if scheme == "https":
            context = self._tls or make_tls_context(os.environ)
            return TimedTlsConnection(address, deadline, context=context)
        return TimedConnection(address, deadline)
