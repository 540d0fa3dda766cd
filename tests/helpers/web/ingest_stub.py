"""Stub of the results service: real HTTPS, scripted replies, no database."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from certificate_authority import CertificateAuthority
from local_servers import send_answer

from treehammer.collectors.worker.service_client import ServiceEndpoint

TOKEN = "header.claims.5ecretSignature"


@dataclass
class StubReply:
    """A scripted reply."""

    status: int
    document: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0


#: Maps the records of a request to a reply; None stores them as the service would.
ReplyScript = Callable[[list[dict[str, Any]]], StubReply | None]


class IngestStub:
    """Stores uploads in :attr:`records`; can be stopped and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority(folder)
        self.ca = authority.ca
        self.records: dict[str, dict[str, Any]] = {}
        self.times: list[float] = []
        self.posts: list[int] = []
        self.tokens: set[str] = set()
        self.script: ReplyScript = lambda _: None
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._certificate = authority.issue_server_certificate()
        self.start()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen on the same port as before."""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                stub.answer_request(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = _QuietHttpServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._certificate)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer_request(self, handler: BaseHTTPRequestHandler) -> None:
        """Store an upload, or reply as the script says."""
        body = gzip.decompress(handler.rfile.read(int(handler.headers["Content-Length"])))
        sent = json.loads(body)["measurements"]
        self.times.append(time.time())
        self.posts.append(len(sent))
        self.tokens.add(handler.headers["Authorization"].removeprefix("Bearer "))
        reply = self.script(sent) or self._store_records(sent)
        time.sleep(reply.after_s)
        text = reply.document if isinstance(reply.document, str) else json.dumps(reply.document)
        send_answer(handler, reply.status, text.encode(), **reply.headers)

    def _store_records(self, sent: list[dict[str, Any]]) -> StubReply:
        new, conflicting = 0, []
        for record in sent:
            identity = record["values"]["measurement_id"]
            before = self.records.setdefault(identity, record)
            new += before is record
            if before != record:
                conflicting.append(identity)
        duplicates = len(sent) - new - len(conflicting)
        return StubReply(200, {"new": new, "known": duplicates, "conflicting": conflicting})


class _QuietHttpServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, which tests do on purpose."""


@pytest.fixture(scope="module")
def stub_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestStub]:
    stub = IngestStub(tmp_path_factory.mktemp("service"))
    yield stub
    stub.stop()


@pytest.fixture
def ingest(stub_service: IngestStub) -> Iterator[IngestStub]:
    stub_service.records.clear()
    stub_service.posts.clear()
    stub_service.tokens.clear()
    yield stub_service
    stub_service.script = lambda _: None


@pytest.fixture
def endpoint(ingest: IngestStub) -> ServiceEndpoint:
    return ServiceEndpoint(ingest.url, TOKEN, str(ingest.ca))
