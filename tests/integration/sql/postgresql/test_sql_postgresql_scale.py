"""Exports of any size from PostgreSQL."""

from scale_contract import *  # noqa: F403
