"""The store on a real PostgreSQL server, with a new database for every test."""

from __future__ import annotations

import pytest
from database_fixtures import database_url as url
from database_fixtures import opened_store as store

__all__ = ["backend", "store", "url"]


@pytest.fixture
def backend() -> str:
    return "postgresql"
