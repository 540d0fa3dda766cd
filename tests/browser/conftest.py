"""The service as a user starts it, and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import browser as browsers
import page_makers
import pytest
from browser import Watched
from playwright.sync_api import Browser
from serving import serving


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
