"""HTTP servers of tests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


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
