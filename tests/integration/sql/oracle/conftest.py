"""The store on H2 in Oracle mode, with a new database for every test."""

from __future__ import annotations

import pytest
from database_fixtures import database_url as url
from database_fixtures import opened_store as store

__all__ = ["backend", "service", "store", "url"]


@pytest.fixture
def backend() -> str:
    return "oracle"


@pytest.fixture
def service(url: str) -> str:
    return url.partition("service_name=")[2]
