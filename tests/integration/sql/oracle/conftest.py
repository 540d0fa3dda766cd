"""The store on H2 in Oracle mode, with a new database for every test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from h2_oracle import H2Server, h2_server  # noqa: F401 - a fixture

from treehammer.sql.write.store import Store

_numbers = count(1)


@pytest.fixture
def service(h2_server: H2Server) -> Iterator[str]:  # noqa: F811
    name = f"results_{next(_numbers)}"
    yield name
    h2_server.drop_database(name)


@pytest.fixture
def url(h2_server: H2Server, service: str) -> str:  # noqa: F811
    return h2_server.url(service)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
