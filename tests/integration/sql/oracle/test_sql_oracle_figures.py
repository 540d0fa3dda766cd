"""Figures in H2's Oracle mode."""

from figure_contract import *  # noqa: F403
