"""HTTP server with a listen queue of a given length, one thread, and a log of its requests."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Format of the log, as the settings of ``log-parse`` declare it.
LOG_FORMAT = {
    "time": r"(?P<second>\d+-\d+-\d+T\d+:\d+:\d+)(?P<fraction>\.\d+) ",
    "clock": "%Y-%m-%dT%H:%M:%S",
    "begin": r"\[(?P<request>\d+)\] > (?P<operation>\w+)",
    "end": r"\[(?P<request>\d+)\] < (?P<code>\d+)",
    "operations": {"HEAD": "open"},
}


@contextmanager
def serve_slowly(log: Path, *, backlog: int, seconds: float) -> Iterator[int]:
    """Answer one request after the other, each in some seconds; yield the port."""
    log.touch()
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        thread = threading.Thread(target=_serve, args=(server, log, seconds), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _serve(server: socket.socket, log: Path, seconds: float) -> None:
    for number in itertools.count():
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, log.open("a", encoding="utf-8") as stream:
            connection.settimeout(60)
            if not connection.recv(65536):
                continue
            _write(stream, f"[{number}] > HEAD")
            time.sleep(seconds)
            _write(stream, f"[{number}] < 0")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n")


def _write(stream: object, text: str) -> None:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    print(f"{stamp}.{int(now % 1 * 1e6):06d} {text}", file=stream, flush=True)  # type: ignore[call-overload]
