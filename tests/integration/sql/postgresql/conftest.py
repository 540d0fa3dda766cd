"""The store on a real PostgreSQL server, with a new database for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres_fixture import SharedPostgresServer, postgresql  # noqa: F401 - a fixture

from treehammer.sql.write.store import Store


@pytest.fixture
def url(
    postgresql: SharedPostgresServer,  # noqa: F811
    request: pytest.FixtureRequest,
) -> Iterator[str]:
    has_store = "store" in request.fixturenames
    name = postgresql.make_store_database() if has_store else postgresql.make_database()
    yield postgresql.url(name)
    postgresql.drop_database(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
