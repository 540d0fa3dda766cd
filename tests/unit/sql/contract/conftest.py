"""Backends on which every test of this folder runs.

Tests run on SQLite, and with the option ``--services`` also on PostgreSQL and on H2 in Oracle mode.
The marker ``backends`` limits a test or a module to the named backends.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

SERVICES = ("postgresql", "oracle")
_oracle_numbers = count(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a store on every chosen backend."""
    if "backend" in metafunc.fixturenames:
        chosen = ("sqlite", *SERVICES) if metafunc.config.getoption("--services") else ("sqlite",)
        marker = metafunc.definition.get_closest_marker("backends")
        metafunc.parametrize("backend", [b for b in chosen if not marker or b in marker.args])


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Create a database, drop it after the test, and provide its URL.

    It is empty, except that tests of a store on a server start with the tables.
    """
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path / 'results.db'}"
        return
    has_store = "store" in request.fixturenames
    if backend == "postgresql":
        server = request.getfixturevalue("postgresql")
        name = server.make_store_database() if has_store else server.make_database()
    else:
        server = request.getfixturevalue("h2_server")
        name = f"contract_{next(_oracle_numbers)}"
        if has_store:
            server.make_store_database(name)
    yield server.url(name)
    if has_store and backend == "postgresql":
        server.give_back(name)
    else:
        server.drop_database(name)
