"""Runs of the results service in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.worker_runs import TREEHAMMER

#: Seconds until a service must answer.
START_LIMIT_S = 60


@contextmanager
def run_service(url: str) -> Iterator[tuple[int, int]]:
    """Run ``treehammer serve`` on a database; yield its port and pid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [TREEHAMMER, "--database", url, "--data-dir", folder, "serve"]
        command += ["--port", str(port), "--read-access", "public", "--quiet"]
        process = subprocess.Popen(command)
        try:
            wait_for_service(process, port)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait()


def wait_for_service(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a service answers.

    Raises:
        URLError: it ended, or did not answer in time.
    """
    until = time.monotonic() + START_LIMIT_S
    while True:
        try:
            address = f"http://127.0.0.1:{port}/api/v1/health"
            urllib.request.urlopen(address, timeout=START_LIMIT_S).close()
            return
        except urllib.error.URLError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)
