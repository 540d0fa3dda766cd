"""Servers on this machine for tests."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from machine_requirements import skip_or_fail


def make_authority(folder: Path) -> Path:
    """Write a certificate of 127.0.0.1, with its key, to a grid-style folder of authorities."""
    if not shutil.which("openssl"):
        skip_or_fail("openssl is not installed")
    file = folder / "host.pem"
    subject = ("-subj", "/CN=storage", "-addext", "subjectAltName=IP:127.0.0.1")
    for command in (
        ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject),
        ("x509", "-in", str(file), "-noout", "-hash"),
    ):
        out = ("-keyout", str(file), "-out", str(file)) if command[0] == "req" else ()
        done = subprocess.run(
            ["openssl", *command, *out], check=True, capture_output=True, text=True
        )
    (folder / f"{done.stdout.strip()}.0").symlink_to(file)
    return file


@contextmanager
def serve_http(
    handler: type[BaseHTTPRequestHandler] = SimpleHTTPRequestHandler,
    folder: Path | None = None,
    certificate: Path | None = None,
) -> Iterator[int]:
    """Answer requests in a thread, without a log; yield the port.

    Args:
        handler: handler of requests.
        folder: folder of a handler that serves files.
        certificate: file of certificate and key, to serve over TLS.
    """
    quiet: type = type("Quiet", (handler,), {"log_message": lambda *_: None})
    answer = partial(quiet, directory=str(folder)) if folder else quiet
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def drip(connection: socket.socket) -> None:
    """Answer with a byte now and then, of a line that never ends."""
    with suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            connection.sendall(b"2")
            time.sleep(0.05)


@contextmanager
def serve_tcp(answer: Callable[[socket.socket], None] | None = None) -> Iterator[int]:
    """Accept connections and answer one after the other, or stay silent; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                if answer is None:
                    silent.append(connection)
                    continue
                with connection, suppress(OSError):
                    connection.settimeout(60)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in silent:
            connection.close()


class MailSink:
    """Mailboxes of an SMTP server, which refuses the recipients in ``refusals``."""

    def __init__(self) -> None:
        self.mails: list[Envelope] = []
        self.refusals: dict[str, str] = {}

    async def handle_RCPT(  # noqa: N802 - name given by aiosmtpd
        self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: Any
    ) -> str:
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - name given by aiosmtpd
        self, _server: Any, _session: Any, envelope: Envelope
    ) -> str:
        self.mails.append(envelope)
        return await self.answer()

    async def answer(self) -> str:
        """Return the answer to a mail that was received."""
        return "250 accepted"


@contextmanager
def serve_mail(sink: MailSink, **options: Any) -> Iterator[int]:
    """Accept mail; yield the port.

    Args:
        sink: keeps the mails.
        options: of aiosmtpd's controller.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(sink, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


def parse_mails(sink: MailSink) -> list[EmailMessage]:
    """Parse the received mails."""
    mails = (mail.content for mail in sink.mails)
    return [message_from_bytes(mail, policy=default) for mail in mails if isinstance(mail, bytes)]
