"""Roll-ups on PostgreSQL."""

from rollup_contract import *  # noqa: F403
