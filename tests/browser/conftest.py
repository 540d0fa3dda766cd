"""Service and browser for browser tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import browser as browsers
import page_database
import pytest
from browser import WatchedTab
from playwright.sync_api import Browser
from service_process import serve_folder


@pytest.fixture(scope="session")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with much in it, open to readers."""
    folder = tmp_path_factory.mktemp("rich")
    page_database.fill_database(f"sqlite:///{folder / 'results.db'}")
    with serve_folder(folder, "--read-access", "public") as address:
        yield address


@pytest.fixture(scope="session")
def empty_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with nothing in it, open to readers."""
    with serve_folder(tmp_path_factory.mktemp("empty"), "--read-access", "public") as address:
        yield address


@pytest.fixture(scope="session")
def closed_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A service for readers with a key, and its folder."""
    folder = tmp_path_factory.mktemp("closed")
    with serve_folder(folder) as address:
        yield address, folder


# Playwright holds the event loop, and tests elsewhere have loops of their own: their files are not
# in the group of this fixture, which ends with the group.
@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser."""
    with browsers.run_chromium() as browser:
        yield browser


@pytest.fixture
def open_tab(chromium: Browser) -> Iterator[Callable[..., WatchedTab]]:
    """Opens tabs; see :class:`browser.WatchedTab`."""
    tabs: list[WatchedTab] = []

    def new(*args: str, **how: object) -> WatchedTab:
        tabs.append(WatchedTab(chromium, *args, **how))  # type: ignore[arg-type]
        return tabs[-1]

    yield new
    for tab in tabs:
        tab.context.close()
