"""What pages ask, on SQLite."""

from page_contract import *  # noqa: F403
