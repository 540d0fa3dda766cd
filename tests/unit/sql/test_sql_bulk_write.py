"""Many measurements at once into SQLite."""

from __future__ import annotations

from bulk_contract import *  # noqa: F403 - the tests that hold for every database
