"""Roll-ups in H2's Oracle mode."""

from rollup_contract import *  # noqa: F403
