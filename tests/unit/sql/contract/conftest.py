"""Backends on which every test of this folder runs.

Tests run on SQLite, and with the option ``--services`` also on PostgreSQL.
The marker ``backends`` limits a test or a module to the named backends.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from database_fixtures import SERVICES
from database_fixtures import database_url as url
from database_fixtures import parametrize_backends as pytest_generate_tests

__all__ = ["pytest_generate_tests", "url"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of a single service without the option."""
    is_of_service = collection_path.stem.removeprefix("test_contract_") in SERVICES
    return True if is_of_service and not config.getoption("--services") else None
