"""Identity query to storage servers; malformed responses are ignored."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest
from local_servers import serve_tcp

from treehammer.collectors.worker.probes.storage_door import (
    ServerIdentity,
    identify_door_server,
    query_server,
)


def _respond_with(*answers: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        for answer in answers:
            connection.recv(1000)
            connection.sendall(answer)

    return serve


def _xroot(status: int, content: bytes) -> bytes:
    return struct.pack(">2sHi", b"th", status, len(content)) + content


DATA, MANAGER = _xroot(0, struct.pack(">ii", 0x520, 1)), _xroot(0, struct.pack(">ii", 0x520, 0))
IN, OUT = _xroot(0, b"s" * 16), _xroot(4003, b"who are you?")


@pytest.mark.parametrize(
    "scheme, answers, expected",
    [
        ("root", [DATA, IN, _xroot(0, b"v5.8.1\n\0")], ServerIdentity("XRootD v5.8.1", True)),
        ("root", [MANAGER, IN, _xroot(0, b"v5.8.1\n")], ServerIdentity("XRootD v5.8.1", False)),
        ("root", [DATA, OUT], ServerIdentity(None, True)),
        ("root", [DATA], ServerIdentity(None, True)),
        ("root", [b"SSH-2.0-OpenSSH\r\n"], ServerIdentity()),
        ("root", [], ServerIdentity()),
        ("http", [b"HTTP/1.1 404 x\r\nServer: dCache/9.2\r\nContent-Length: 0\r\n\r\n"], ServerIdentity("dCache/9.2")),
        ("http", [b"nothing\r\n\r\n"], ServerIdentity()),
        ("https", [b"not TLS"], ServerIdentity()),
    ],
)  # fmt: skip
def test_servers(scheme: str, answers: list[bytes], expected: ServerIdentity) -> None:
    with serve_tcp(_respond_with(*answers)) as port:
        assert query_server(scheme, "127.0.0.1", port) == expected


def test_data_server_is_identified() -> None:
    with serve_tcp(_respond_with(DATA, IN, _xroot(0, b"v5.8.1"))) as port:
        found = identify_door_server(f"root://127.0.0.1:{port}//file")
    assert found == {"server_version": "XRootD v5.8.1", "data_server": f"127.0.0.1:{port}"}
    with serve_tcp(_respond_with(MANAGER, OUT)) as port:
        assert set(identify_door_server(f"root://127.0.0.1:{port}//file").values()) == {None}


def test_invalid_door_has_no_identity() -> None:
    assert (
        identify_door_server("/a/file")
        == identify_door_server("root://127.0.0.1:nonsense//file")
        == {}
    )
