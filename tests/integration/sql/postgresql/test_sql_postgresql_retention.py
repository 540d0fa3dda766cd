"""Retention on PostgreSQL."""

from retention_contract import *  # noqa: F403
