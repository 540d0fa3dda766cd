"""Figures on PostgreSQL."""

from figure_contract import *  # noqa: F403
