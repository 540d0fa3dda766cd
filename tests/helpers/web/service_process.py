"""``treehammer serve`` as a process: with HTTPS, without TLS, and attacked through real sockets."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import command_forker
from certificate_authority import CertificateAuthority, find_free_port
from command_forker import ForkedCommand, start_command
from polling import wait_for_server

from treehammer.config import Settings
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

#: Longest start on a busy machine.
START_TIMEOUT_S = 180


class ServiceProcess:
    """A results service with a fixed port.

    Args:
        folder: of logs and keys, and of the database by default.
        database: its URL.
        python: interpreter that runs the service, by default this one.
        authority: of the certificate, by default a new one.
        clock: file with the offset of its clock.
        strict: whether warnings are errors.
    """

    def __init__(
        self,
        folder: Path,
        database: str = "",
        *,
        python: Path | None = None,
        authority: CertificateAuthority | None = None,
        clock: Path | None = None,
        strict: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = database or f"sqlite:///{folder / 'central.db'}"
        self.authority = authority or CertificateAuthority(folder)
        certificate, key = self.authority.issue_server_certificate()
        self.port = find_free_port()
        self._python, self._clock, self._strict = python, str(clock or ""), strict
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
                self._process = start_command(
                    self._serve, log, clock=self._clock, strict=self._strict
                )
            else:
                command = [str(self._python), "-m", "treehammer", *self._serve]
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        wait_for_server(self._is_answering, self._process.poll, self.log, START_TIMEOUT_S)

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
        row_extras = [extra for extra in extras if extra.measurement_id == row["measurement_id"]]
        row["extras"] = {extra.name: extra.value for extra in row_extras}
    return sorted(rows, key=lambda row: str(row["measurement_id"]))


@contextmanager
def serve_folder(folder: Path, *flags: str) -> Iterator[str]:
    """Serve the database in a folder, and yield the base URL."""
    log = folder / "serve.log"
    port = find_free_port()
    words = ["--data-dir", str(folder), "serve", "--port", str(port), *flags]
    with log.open("wb") as stream:
        process = start_command(words, stream, folder=folder)
    try:
        yield wait_for_server(
            lambda: re.search(r"serving at (\S+)", log.read_text("utf-8")), process.poll, log
        )[1]
    finally:
        process.terminate()
        process.wait(timeout=60)
