"""``treehammer serve`` as a process: with HTTPS, without TLS, and attacked through real sockets."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import command_forker
import psutil
from command_forker import ForkedCommand, start_command

from treehammer.config import Settings
from treehammer.sql.core.access_keys import AccessKey
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.keyring import Keyring, load_master_keys
from treehammer.sql.write.store import Store
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.testbed.network import find_free_ports

#: Longest start on a busy machine.
START_TIMEOUT_S = 180


class ServiceProcess:
    """A results service with a fixed port.

    Args:
        folder: of logs and keys, and of the database by default.
        database: its URL.
        python: interpreter that runs the service, by default this one.
    """

    def __init__(self, folder: Path, database: str = "", *, python: Path | None = None) -> None:
        self.folder = folder
        self.database = database or f"sqlite:///{folder / 'central.db'}"
        self.authority = CertificateAuthority(folder)
        certificate, key = self.authority.issue_server_certificate()
        (self.port,) = find_free_ports(1)
        self._python = python
        self._options = ["--data-dir", str(folder / "data"), "--database", self.database]
        self._serve = [
            *(*self._options, "serve", "--port", str(self.port)),
            *("--certificate", str(certificate), "--certificate-key", str(key)),
        ]
        self._process: ForkedCommand | subprocess.Popen[bytes] | None = None
        self.log = folder / "serve.log"
        self.key = folder / "submitter.key"

    @property
    def url(self) -> str:
        """Base URL."""
        return f"https://127.0.0.1:{self.port}"

    def run_command(self, *arguments: str) -> None:
        """Run a command of the service's administrator."""
        command_forker.run_command([*self._options, *arguments]).check_returncode()

    def start(self) -> None:
        """Start the process and wait until the service answers."""
        with self.log.open("ab") as log:
            if self._python is None:
                self._process = command_forker.start_command(self._serve, log)
            else:
                command = [str(self._python), "-m", "treehammer", *self._serve]
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        end = time.monotonic() + START_TIMEOUT_S
        while not self._is_answering():
            assert time.monotonic() < end, self.log.read_text()
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def _is_answering(self) -> bool:
        context = ssl.create_default_context(cafile=self.authority.ca)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/health", timeout=2, context=context):
                return True
        except OSError:
            return False

    def end_process(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process by a signal, by default without cleanup."""
        if self._process is not None:
            os.kill(self._process.pid, number)
            self._process.wait(timeout=START_TIMEOUT_S)
            self._process = None

    def settings_for_user(self, settings: Settings) -> Settings:
        """Return settings with which a user's jobs report to this service."""
        if not self.key.exists():
            self.run_command(
                "token", "create", "--role", "submit", "--name", "me", "-o", str(self.key)
            )
        return replace(
            settings,
            service_url=self.url,
            service_ca_file=self.authority.ca,
            service_token_file=self.key,
        )

    def read_measurements(self) -> list[dict[str, object]]:
        """Read all stored measurements with their extras."""
        return read_whole_rows(self.database)


def read_whole_rows(database: str) -> list[dict[str, object]]:
    """Read all measurements of a database with their extras."""
    with Store.open(database) as store:
        rows: list[dict[str, object]] = [dict(row) for row in store.measurements(Selection())]
        extras = list(store.extras(Selection()))
    for row in rows:
        mine = [one for one in extras if one.measurement_id == row["measurement_id"]]
        row["extras"] = {one.name: one.value for one in mine}
    return sorted(rows, key=lambda row: str(row["measurement_id"]))


@contextmanager
def serve_folder(folder: Path, *flags: str) -> Iterator[str]:
    """Serve the database in a folder, and yield the base URL."""
    log = folder / "serve.log"
    (port,) = find_free_ports(1)
    words = ["--data-dir", str(folder), "serve", "--port", str(port), *flags]
    with log.open("wb") as stream:
        process = start_command(words, stream, folder=folder)
    try:
        yield _wait_for_address(process, log)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for_address(process: ForkedCommand, log: Path) -> str:
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"serving at (\S+)", log.read_text("utf-8")):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text("utf-8"))


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
