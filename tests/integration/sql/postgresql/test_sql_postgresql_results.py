"""Results for Python programs, from PostgreSQL."""

from __future__ import annotations

from results_contract import *  # noqa: F403 - the tests that hold for every database
