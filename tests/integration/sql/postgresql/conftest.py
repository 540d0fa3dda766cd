"""The store on a real PostgreSQL: every test has a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres import Server, postgresql  # noqa: F401 - a fixture

from treehammer.sql.store import Store


@pytest.fixture
def url(postgresql: Server) -> Iterator[str]:  # noqa: F811
    name = postgresql.make_database()
    yield postgresql.url(name)
    postgresql.drop_database(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
