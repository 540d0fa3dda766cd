"""Quick databases for all unit tests, an empty SQLite store, and a time zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from quick_databases import quick_databases

from treehammer import config
from treehammer.sql.write.store import Store

__all__ = ["quick_databases", "settings", "store", "url", "zurich"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return config.load_settings(
        {"data_dir": tmp_path, "cache_dir": tmp_path}, environ={}, folder=tmp_path
    )


@pytest.fixture
def zurich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set this process to a time zone that changes its clocks."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Zurich")
        time.tzset()
        yield
    time.tzset()
