"""Retention in H2's Oracle mode."""

from retention_contract import *  # noqa: F403
