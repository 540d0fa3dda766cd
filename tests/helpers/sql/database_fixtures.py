"""Databases for tests on SQLite and PostgreSQL; the server starts when first used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postgres_fixture import SharedPostgresServer

SERVICES = ("postgresql",)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[SharedPostgresServer]:
    """Provide the PostgreSQL server of this process."""
    from postgres_fixture import run_server

    with run_server() as server:
        yield server


@contextmanager
def create_database(
    backend: str, request: pytest.FixtureRequest, folder: Path, *, has_store: bool
) -> Iterator[str]:
    """Create a database, with the tables of a store on request; yield its URL, then drop it.

    SQLite's is a file in ``folder``, which opening a store creates quickly.
    """
    if backend == "sqlite":
        yield f"sqlite:///{folder / 'results.db'}"
    else:
        postgres: SharedPostgresServer = request.getfixturevalue("postgresql")
        name = postgres.make_store_database() if has_store else postgres.make_database()
        yield postgres.url(name)
        postgres.drop_database(name)


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Create a database, drop it after the test, and provide its URL.

    It is empty, except that tests of a store on a server start with the tables.
    """
    has_store = "store" in request.fixturenames
    with create_database(backend, request, tmp_path, has_store=has_store) as url:
        yield url


def parametrize_backends(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a store on every chosen backend."""
    if "backend" in metafunc.fixturenames:
        chosen = ("sqlite", *SERVICES) if metafunc.config.getoption("--services") else ("sqlite",)
        marker = metafunc.definition.get_closest_marker("backends")
        backends = [backend for backend in chosen if not marker or backend in marker.args]
        metafunc.parametrize("backend", backends, scope="module")
