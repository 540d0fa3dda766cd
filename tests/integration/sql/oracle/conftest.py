"""The store on H2's Oracle mode: every test has a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from h2_oracle import Server, h2  # noqa: F401 - a fixture

from treehammer.sql.store import Store

_numbers = count(1)


@pytest.fixture
def service(h2: Server) -> Iterator[str]:  # noqa: F811
    name = f"results_{next(_numbers)}"
    yield name
    h2.forget(name)


@pytest.fixture
def url(h2: Server, service: str) -> str:  # noqa: F811
    return h2.url(service)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
