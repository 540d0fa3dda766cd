"""Retention on SQLite."""

from retention_contract import *  # noqa: F403
