"""Copies from SQLite into H2's Oracle mode."""

from copy_contract import *  # noqa: F403
