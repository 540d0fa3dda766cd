"""Backends on which every test of this folder runs."""

from database_fixtures import database_url as url
from database_fixtures import parametrize_backends as pytest_generate_tests

__all__ = ["pytest_generate_tests", "url"]
