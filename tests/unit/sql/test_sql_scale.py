"""Exports of any size from SQLite."""

from scale_contract import *  # noqa: F403
