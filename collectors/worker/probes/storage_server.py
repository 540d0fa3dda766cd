"""Version query to a storage server: a few small messages on one connection, without file access."""

from __future__ import annotations

import http.client
import os
import socket
import struct
from dataclasses import dataclass
from typing import Optional, Tuple

from ...http_requests import Deadline, TimedConnection, TimedTlsConnection

#: Total time of a query.
_QUERY_TIMEOUT_S = 3.0
_MAX_RESPONSE_BYTES = 4096

# Version 5.2 of the xroot protocol: the first messages of a session, and their codes.
_HANDSHAKE = struct.pack(">iiiii", 0, 0, 0, 4, 2012)
_LOGIN_REQUEST, _QUERY_REQUEST, _QUERY_CONFIG, _STATUS_OK = 3007, 3001, 7, 0
_DATA_SERVER = 1
_STREAM_ID = b"th"


@dataclass(frozen=True)
class ServerIdentity:
    """Identity reported by a server; unreported fields are None."""

    version: Optional[str] = None
    is_data_server: Optional[bool] = None


def query_server(scheme: str, host: str, port: int) -> ServerIdentity:
    """Ask a server for its identity; failures and refusals leave fields None.

    Each execution repeats the request: a server may be upgraded while a job runs.
    """
    try:
        if scheme in ("http", "https"):
            return _query_http_server(scheme, host, port)
        return _query_xrootd_server(host, port)
    except (OSError, ValueError, struct.error, http.client.HTTPException):
        return ServerIdentity()


def _query_http_server(scheme: str, host: str, port: int) -> ServerIdentity:
    kind = TimedTlsConnection if scheme == "https" else TimedConnection
    connection = kind(host, Deadline(_QUERY_TIMEOUT_S), port)
    try:
        connection.request("HEAD", "/")
        return ServerIdentity(connection.getresponse().getheader("Server"))
    finally:
        connection.close()


def _query_xrootd_server(host: str, port: int) -> ServerIdentity:
    deadline = Deadline(_QUERY_TIMEOUT_S)
    with socket.create_connection((host, port), timeout=_QUERY_TIMEOUT_S) as connection:
        connection.sendall(_HANDSHAKE)
        _, answer = _read_response(connection, deadline)
        _, kind = struct.unpack(">ii", answer[:8])
        server = ServerIdentity(None, kind == _DATA_SERVER)
        try:
            # Anonymous: a server that requires authentication does not report its version.
            user = b"treehamm"
            connection.sendall(struct.pack(">2sHi8sBBBBi", _STREAM_ID, _LOGIN_REQUEST, os.getpid(), user, 0, 0, 5, 0, 0))  # fmt: skip
            if _read_response(connection, deadline)[0] != _STATUS_OK:
                return server
            words = b"version"
            query = struct.pack(">2sHH2s4s8si", _STREAM_ID, _QUERY_REQUEST, _QUERY_CONFIG, b"", b"", b"", len(words))  # fmt: skip
            connection.sendall(query + words)
            status, answer = _read_response(connection, deadline)
        except (OSError, ValueError, struct.error):
            return server
        text = answer.decode("ascii", "replace").strip("\0\n ") if status == _STATUS_OK else ""
        return ServerIdentity(f"XRootD {text}" if text else None, server.is_data_server)


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
