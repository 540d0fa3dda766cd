"""``treehammer serve`` as a process without TLS."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_forker import ForkedCommand, start_command

from treehammer.testbed.network import find_free_ports


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
