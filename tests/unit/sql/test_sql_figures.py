"""Figures on SQLite."""

from figure_contract import *  # noqa: F403
