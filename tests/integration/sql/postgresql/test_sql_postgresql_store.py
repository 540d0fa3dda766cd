"""What the store promises everywhere, on PostgreSQL."""

from store_contract import *  # noqa: F403
