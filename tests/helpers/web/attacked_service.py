"""``treehammer serve`` as a process that tests attack through real sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from command_forker import ForkedCommand, start_command

from treehammer.sql.auth.access_keys import AccessKey
from treehammer.sql.auth.keyring import Keyring, load_master_keys
from treehammer.sql.engine.database_setup import open_engine
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.testbed.network import find_free_ports

PATIENCE_S = 60.0
#: Addresses of this machine: attackers and victims must differ.
ATTACKER, VICTIM = "127.0.0.1", "127.0.0.2"


@dataclass
class AttackedService:
    """A running service, with TLS if it has an authority."""

    process: ForkedCommand
    port: int
    log: Path
    folder: Path
    database: str
    authority: CertificateAuthority | None = None

    def connect(self, source: str = ATTACKER) -> socket.socket:
        """Open a connection from an address."""
        return socket.create_connection(
            ("127.0.0.1", self.port), timeout=PATIENCE_S, source_address=(source, 0)
        )

    def open_with(self, sent: bytes, count: int) -> list[socket.socket]:
        """Open connections that send the same bytes; those that fail are left out."""
        clients = []
        for _ in range(count):
            try:
                client = self.connect()
                client.sendall(sent)
            except OSError:
                continue
            clients.append(client)
        return clients

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        source: str = VICTIM,
        timeout_s: float = PATIENCE_S,
        **headers: str,
    ) -> tuple[int, Mapping[str, str], Any]:
        """Send a request; return status, headers and document."""
        connection = self._make_connection(source, timeout_s)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, dict(answer.getheaders()), json.loads(text) if text else None
        finally:
            connection.close()

    def _make_connection(self, source: str, timeout_s: float) -> http.client.HTTPConnection:
        address, start = ("127.0.0.1", self.port), (source, 0)
        if self.authority is None:
            return http.client.HTTPConnection(*address, timeout=timeout_s, source_address=start)
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return http.client.HTTPSConnection(
            *address, timeout=timeout_s, source_address=start, context=context
        )

    def make_key(self, name: str) -> AccessKey:
        """Create a key with the role submit."""
        engine = open_engine(self.database, create=True)
        master = load_master_keys(self.folder / "service.key").current
        key = Keyring(engine).create_key(master, "submit", name, now_us=1)
        engine.dispose()
        return key

    def post(self, body: bytes, token: str) -> tuple[int, Mapping[str, str], Any]:
        """Upload a body of measurements."""
        return self.request(
            "POST",
            "/api/v1/measurements",
            body,
            Authorization=f"Bearer {token}",
            Content_Type="application/json",
        )

    def wait_for_log(self, text: str) -> None:
        """Wait until the log holds a text; a line may follow the response that it is about."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def read_memory(self) -> int:
        """Return the resident memory in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def terminate(self) -> float:
        """Send SIGTERM; return the seconds until the process ended regularly."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()
        return time.monotonic() - start


@contextmanager
def run_attacked_service(
    folder: Path,
    *flags: str,
    open_files: int = 0,
    database: str = "",
    with_tls: bool = False,
    **settings: object,
) -> Iterator[AttackedService]:
    """Run a service on a database in a folder, with settings and a limit of open files."""
    (port,) = find_free_ports(1)
    authority = CertificateAuthority(folder / "authority") if with_tls else None
    if authority is not None:
        chain, private = authority.issue_server_certificate()
        settings |= {"serve_certificate": chain, "serve_certificate_key": private}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TREEHAMMER_")}
    environment |= {f"TREEHAMMER_{k.upper()}": str(v) for k, v in settings.items()}
    words = ["--data-dir", str(folder), *(["--database", database] if database else [])]
    log = folder / "serve.log"
    with log.open("wb") as stream:
        process = start_command(
            [*words, "serve", "--port", str(port), *flags],
            stream,
            env=environment,
            folder=folder,
            open_files=open_files,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "uploads require a token" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        url = database or f"sqlite:///{folder / 'results.db'}"
        yield AttackedService(process, port, log, folder, url, authority)
    finally:
        process.kill()
        process.wait()
