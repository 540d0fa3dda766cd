"""Tests of the service as a process."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificate_authority import CertificateAuthority, find_free_port
from command_forker import run_command
from measurement_factory import make_measurement
from service_load import exchange_request, pack_measurements

from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.core.access_keys import mint_job_token, parse_key
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write.keyring import Keyring, load_master_keys
from treehammer.sql.write.store import Store
from treehammer.web.service.service_process import MAX_HEADER_BYTES, SHUTDOWN_TIMEOUT_S

PATIENCE_S = 60.0


class Administrator:
    """Runs ``treehammer`` commands in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = f"sqlite:///{folder / 'data' / 'results.db'}"
        self.authority = CertificateAuthority(folder / "authority")
        self.certificate, self.key = self.authority.issue_server_certificate()
        self.port = find_free_port()
        self._running: list[subprocess.Popen[str]] = []

    def command(self, *words: str) -> list[str]:
        data = str(self.folder / "data")
        return [sys.executable, "-m", "treehammer", "--data-dir", data, *words]

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        data = str(self.folder / "data")
        return run_command(
            ["--data-dir", data, *words], env=clean_environment(), folder=self.folder
        )

    def serves(self) -> subprocess.Popen[str]:
        """Start a service with TLS, and wait until it serves."""
        tls = ["--certificate", str(self.certificate), "--certificate-key", str(self.key)]
        command = self.command("serve", "--port", str(self.port), *tls)
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=clean_environment()
        )
        self._running.append(process)
        assert process.stderr is not None
        while "uploads require a token" not in (line := process.stderr.readline()):
            assert line or process.poll() is None, "it did not start"
        return process

    def ends(self, process: subprocess.Popen[str], how: signal.Signals) -> tuple[int, str]:
        """Stop a service, and return its exit code and its log."""
        process.send_signal(how)
        _, log = process.communicate(timeout=PATIENCE_S)
        return process.returncode, log

    def clean(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TREEHAMMER_")}


@pytest.fixture
def administrator(tmp_path: Path) -> Iterator[Administrator]:
    admin = Administrator(tmp_path)
    yield admin
    admin.clean()


def test_serve_stores_measurements_and_ends_in_time(administrator: Administrator) -> None:
    file = administrator.folder / "alice.key"
    made = administrator.types(
        "token", "create", "--role", "submit", "--name", "a", "-o", str(file)
    )
    assert made.returncode == 0, made.stderr
    key = parse_key(file.read_text())
    token = mint_job_token(key, "campaign", "job", current_us() + 10**9)
    process = administrator.serves()
    connection = administrator.connection()
    measurement = make_measurement(extras={"a": 1.0})
    # Two requests on one connection.
    for outcome in ({"new": 1, "known": 0}, {"new": 0, "known": 1}):
        status, headers, document = exchange_request(
            connection,
            "POST",
            "/api/v1/measurements?token=not-here",
            pack_measurements([measurement]),
            Authorization=f"Bearer {token}",
            Content_Type="application/json",
        )
        assert (status, document) == (200, {**outcome, "conflicting": []})
        assert "server" not in headers
    connection.close()
    flood, half, idle = (administrator.connection() for _ in range(3))
    for connection in (flood, half, idle):
        connection.connect()
    flood.sock.settimeout(PATIENCE_S)
    flood.sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEADER_BYTES)
    assert b" 400 " in flood.sock.recv(4096)
    # Neither half a request nor a client that does not confirm the end of TLS delays it.
    half.sock.sendall(b"POST /api/v1/measurements HTTP/1.1\r\nHost: x\r\n")
    start = time.monotonic()
    code, log = administrator.ends(process, signal.SIGTERM)
    assert (code, time.monotonic() - start < SHUTDOWN_TIMEOUT_S) == (0, True)
    for connection in (flood, half, idle):
        connection.close()
    assert log.count("POST /api/v1/measurements 200") == 2
    assert "1 measurements from a" in log
    assert "all acknowledged measurements are in the database" in log
    for secret in (token, token.split(".")[2], key.secret, "not-here"):
        assert secret not in log
    with Store.open(administrator.database) as store:
        assert sum(store.count_by_attempt("campaign").values()) == 1


def test_serve_warns_of_readers_of_its_database_and_of_keys_of_another_master_key(
    administrator: Administrator,
) -> None:
    engine = open_engine(administrator.database, create=True)
    Keyring(engine).create_key(b"x" * 32, "read", "old", now_us=1)
    engine.dispose()
    (administrator.folder / "data" / "results.db").chmod(0o640)
    process = subprocess.Popen(
        administrator.command("serve", "--port", str(administrator.port)),
        stderr=subprocess.PIPE, text=True, env=clean_environment(), cwd=administrator.folder,
    )  # fmt: skip
    administrator._running.append(process)
    assert process.stderr is not None
    assert "run chmod 600" in process.stderr.readline()
    assert "1 key created with another master key" in process.stderr.readline()
    assert "serving at" in process.stderr.readline()
    administrator.ends(process, signal.SIGTERM)
    assert load_master_keys(administrator.folder / "data" / "service.key").current


def test_serve_notifies_systemd_of_start_and_stop(
    administrator: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        address = str(administrator.folder / "notify")
        receiver.bind(address)
        receiver.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        process = administrator.serves()
        while b"READY=1" not in receiver.recv(4096):
            pass
        connection = administrator.connection()
        assert exchange_request(connection, "GET", "/api/v1/health")[0] == 200
        connection.close()
        assert administrator.ends(process, signal.SIGINT)[0] == 0, "Ctrl-C is a regular stop"
        while b"STOPPING=1" not in receiver.recv(4096):
            pass
