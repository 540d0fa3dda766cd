"""The session of Rucio's client: deadlines for whole calls, and tokens that stay at the server."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler

import pytest
import requests
from local_servers import serve_http
from lying_doors import CONTENT, SIZE, LyingDoor

from treehammer.collectors import http_requests
from treehammer.datasets.rucio.rucio_session import make_session


def test_dripping_server_ends_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.monotonic()
    with serve_http(LyingDoor) as port, make_session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(http_requests, "TRANSFER_START_S", 0.5)
            for kind in ("slow-headers", "drip"):
                with pytest.raises(requests.RequestException):
                    session.get(f"http://127.0.0.1:{port}/{kind}/f", timeout=60)
        with session.get(f"http://127.0.0.1:{port}/right/f", timeout=60) as answer:
            assert answer.content == CONTENT
        with session.get(f"http://127.0.0.1:{port}/right/f", timeout=60, stream=True) as answer:
            assert sum(map(len, answer.iter_content(1000))) == SIZE
    assert time.monotonic() - start < 25, "both whole answers take 60 s"


def test_token_stays_at_the_server() -> None:
    tokens: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        target = ""

        def do_GET(self) -> None:
            tokens.append(self.headers["X-Rucio-Auth-Token"])
            self.send_response(302 if self.target and self.path == "/from" else 200)
            self.send_header("Location", f"{self.target}/to")
            self.send_header("Content-Length", "0")
            self.end_headers()

    headers = {"X-Rucio-Auth-Token": "secret"}
    with serve_http(Server) as other, serve_http(Server) as port, make_session() as session:
        for target in (other, port):
            Server.target = f"http://127.0.0.1:{target}"
            session.get(f"http://127.0.0.1:{port}/from", headers=headers, timeout=10).close()
    assert tokens == ["secret", None, "secret", "secret"]
