"""Exports from H2's Oracle mode."""

from export_contract import *  # noqa: F403
