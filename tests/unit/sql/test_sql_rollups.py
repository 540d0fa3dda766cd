"""Roll-ups on SQLite."""

from rollup_contract import *  # noqa: F403
