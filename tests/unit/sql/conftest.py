"""A store to try things with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from treehammer.sql.write.store import Store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
