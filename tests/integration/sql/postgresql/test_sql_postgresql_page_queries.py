"""What pages ask, on PostgreSQL."""

from page_contract import *  # noqa: F403
