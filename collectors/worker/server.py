"""Asks a storage server who it is: a few small messages on one connection, and no file is touched."""

from __future__ import annotations

import http.client
import os
import socket
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Optional, Tuple

_TIMEOUT_S = 3.0
_MAX_ANSWER = 4096

# The xroot protocol 5.2: messages that start a conversation, and their codes.
_HANDSHAKE = struct.pack(">iiiii", 0, 0, 0, 4, 2012)
_LOGIN, _QUERY, _QUERY_CONFIG, _OK = 3007, 3001, 7, 0
_DATA_SERVER = 1
_STREAM = b"th"


@dataclass(frozen=True)
class Server:
    """What a server says of itself; None where it does not."""

    version: Optional[str] = None
    is_data_server: Optional[bool] = None


@lru_cache(maxsize=None)
def ask(scheme: str, host: str, port: int) -> Server:
    """Ask a server, once in a job; one that does not answer, or wants to know more of us, tells less or nothing."""
    try:
        if scheme in ("http", "https"):
            return _ask_web(scheme, host, port)
        return _ask_xroot(host, port)
    except (OSError, ValueError, struct.error, http.client.HTTPException):
        return Server()


def _ask_web(scheme: str, host: str, port: int) -> Server:
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("HEAD", "/")
        return Server(connection.getresponse().getheader("Server"))
    finally:
        connection.close()


def _ask_xroot(host: str, port: int) -> Server:
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.sendall(_HANDSHAKE)
        _, answer = _answer(connection)
        _, kind = struct.unpack(">ii", answer[:8])
        server = Server(None, kind == _DATA_SERVER)
        try:
            # Anonymous: a server that wants to know who asks keeps its version to itself.
            user = b"treehamm"
            connection.sendall(struct.pack(">2sHi8sBBBBi", _STREAM, _LOGIN, os.getpid(), user, 0, 0, 5, 0, 0))  # fmt: skip
            if _answer(connection)[0] != _OK:
                return server
            words = b"version"
            query = struct.pack(">2sHH2s4s8si", _STREAM, _QUERY, _QUERY_CONFIG, b"", b"", b"", len(words))  # fmt: skip
            connection.sendall(query + words)
            status, answer = _answer(connection)
        except (OSError, ValueError, struct.error):
            return server
        text = answer.decode("ascii", "replace").strip("\0\n ") if status == _OK else ""
        return Server(f"XRootD {text}" if text else None, server.is_data_server)


def _answer(connection: socket.socket) -> Tuple[int, bytes]:
    """Status and content of the next answer."""
    _, status, size = struct.unpack(">2sHi", _read(connection, 8))
    if not 0 <= size <= _MAX_ANSWER:
        raise ValueError("not an answer of the xroot protocol")
    return status, _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ValueError("the connection ended")
        data += more
    return data
