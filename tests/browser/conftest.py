"""The service as a user starts it, and a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import browser as browsers
import page_makers
import pytest
from browser import Watched
from playwright.sync_api import Browser

from treehammer.testbed.free_ports import free_ports


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[str]:
    """``treehammer serve`` on the database in a folder; its address."""
    log = folder / "serve.log"
    (port,) = free_ports(1)
    words = ["--data-dir", str(folder), "serve", "--port", str(port), *flags]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "treehammer", *words], stderr=stream, cwd=folder, env=os.environ
        )
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"serving at (\S+)", log.read_text("utf-8")):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text("utf-8"))


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with much in it, open to readers."""
    folder = tmp_path_factory.mktemp("rich")
    page_makers.fill(f"sqlite:///{folder / 'results.db'}")
    with serving(folder, "--reading", "open") as address:
        yield address


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with nothing in it, open to readers."""
    with serving(tmp_path_factory.mktemp("empty"), "--reading", "open") as address:
        yield address


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A service for readers with a key, and its folder."""
    folder = tmp_path_factory.mktemp("closed")
    with serving(folder) as address:
        yield address, folder


# For a file, as Playwright holds the event loop: tests elsewhere have loops of their own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser."""
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Watched]]:
    """Opens tabs; see :class:`browser.Watched`."""
    tabs: list[Watched] = []

    def new(*args: str, **how: object) -> Watched:
        tabs.append(Watched(chromium, *args, **how))  # type: ignore[arg-type]
        return tabs[-1]

    yield new
    for tab in tabs:
        tab.context.close()
