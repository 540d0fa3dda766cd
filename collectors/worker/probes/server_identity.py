"""Identity of a storage server, by a few small messages on one connection, without file access."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Callable, Mapping, Optional, Tuple

from ...http_requests import Deadline, TimedConnection, TimedTlsConnection
from ...storage_access import HTTP_CLIENT, S3_CLIENT, SCHEMES, XROOTD_CLIENT

#: Total time of a query.
_QUERY_TIMEOUT_S = 3.0
_MAX_RESPONSE_BYTES = 4096
#: Queries of which the fastest counts as the round trip.
_MEASURED_QUERIES = 3

# Version 5.2 of the xroot protocol: the first messages of a session, and their codes.
_HANDSHAKE = struct.pack(">iiiii", 0, 0, 0, 4, 2012)
_LOGIN_REQUEST, _QUERY_REQUEST, _QUERY_CONFIG, _STATUS_OK = 3007, 3001, 7, 0
_DATA_SERVER = 1
_STREAM_ID = b"th"


@dataclass(frozen=True)
class ServerIdentity:
    """Identity reported by a server; unreported fields are None.

    ``rtt_s`` is the shortest time from a request to its answer on an open connection: it sees a proxy's
    delay, which a connect does not.
    """

    version: Optional[str] = None
    is_data_server: Optional[bool] = None
    rtt_s: Optional[float] = field(default=None, compare=False)


def query_server(scheme: str, host: str, port: int, *, measures: bool = False) -> ServerIdentity:
    """Ask a server for its identity; failures and refusals leave fields None.

    Each execution repeats the request: a server may be upgraded while a job runs.

    Args:
        scheme: of its URLs.
        host: of the server.
        port: of the server.
        measures: send as many requests as the round trip takes.
    """
    try:
        query = _QUERIES.get(SCHEMES[scheme].client) if scheme in SCHEMES else None
        return query(scheme, host, port, measures) if query else ServerIdentity()
    except (OSError, ValueError, struct.error, http.client.HTTPException):
        return ServerIdentity()


def _query_http_server(
    scheme: str, host: str, port: int, measures: bool, method: str = "HEAD"
) -> ServerIdentity:
    deadline = Deadline(_QUERY_TIMEOUT_S)
    connection = TimedConnection(host, deadline, port)
    if SCHEMES[scheme].tls:
        # Any certificate is accepted: nothing secret is sent, and payloads verify.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = TimedTlsConnection(host, deadline, port, context=context)
    try:
        version, rtt_s = _time_request(connection, method)
        if measures:
            # A proxy with delay makes the first answer wait for the connect, too; this one does not.
            connection.close()
            connection.connect()
            time.sleep(min(rtt_s, _QUERY_TIMEOUT_S / 4))
            rtt_s = min(rtt_s, _time_request(connection, method)[1])
        return ServerIdentity(version, None, rtt_s)
    finally:
        connection.close()


def _time_request(connection: TimedConnection, method: str) -> Tuple[Optional[str], float]:
    """Send a request; return the server's version and the time to its answer."""
    if connection.sock is None:
        connection.connect()
    start = time.monotonic()
    connection.request(method, "/")
    response = connection.getresponse()
    return response.getheader("Server"), time.monotonic() - start


def query_xrootd_server(_scheme: str, host: str, port: int, measures: bool) -> ServerIdentity:
    """Shake hands with a server of the xroot protocol, and ask for its version."""
    deadline = Deadline(_QUERY_TIMEOUT_S)
    with socket.create_connection((host, port), timeout=_QUERY_TIMEOUT_S) as connection:
        connection.sendall(_HANDSHAKE)
        _, answer = _read_response(connection, deadline)
        _, kind = struct.unpack(">ii", answer[:8])
        server = ServerIdentity(None, kind == _DATA_SERVER)
        try:
            # Anonymous: a server that requires authentication does not report its version.
            user = b"treehamm"
            start = time.monotonic()
            connection.sendall(struct.pack(">2sHi8sBBBBi", _STREAM_ID, _LOGIN_REQUEST, os.getpid(), user, 0, 0, 5, 0, 0))  # fmt: skip
            if _read_response(connection, deadline)[0] != _STATUS_OK:
                return server
            server = replace(server, rtt_s=time.monotonic() - start)
            words = b"version"
            query = struct.pack(">2sHH2s4s8si", _STREAM_ID, _QUERY_REQUEST, _QUERY_CONFIG, b"", b"", b"", len(words))  # fmt: skip
            for _ in range(_MEASURED_QUERIES if measures else 1):
                start = time.monotonic()
                connection.sendall(query + words)
                status, answer = _read_response(connection, deadline)
                server = replace(server, rtt_s=min(server.rtt_s or 0.0, time.monotonic() - start))
        except (OSError, ValueError, struct.error):
            return server
        text = answer.decode("ascii", "replace").strip("\0\n ") if status == _STATUS_OK else ""
        return replace(server, version=f"XRootD {text}" if text else None)


#: Client of a scheme -> query of its servers.
_QUERIES: Mapping[str, Callable[[str, str, int, bool], ServerIdentity]] = {
    HTTP_CLIENT: _query_http_server,
    # Without keys: a refusal names the server, too; HEAD of / is no request of S3.
    S3_CLIENT: partial(_query_http_server, method="GET"),
    XROOTD_CLIENT: query_xrootd_server,
}


def _read_response(connection: socket.socket, deadline: Deadline) -> Tuple[int, bytes]:
    """Read status and content of the next response."""
    _, status, size = struct.unpack(">2sHi", _read_exactly(connection, 8, deadline))
    if not 0 <= size <= _MAX_RESPONSE_BYTES:
        raise ValueError("not a response of the xroot protocol")
    return status, _read_exactly(connection, size, deadline)


def _read_exactly(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    data = b""
    while len(data) < size:
        with deadline.bound(connection):
            received = connection.recv(size - len(data))
        if not received:
            raise ValueError("the server closed the connection")
        data += received
    return data
