"""What pages ask, in H2's Oracle mode."""

from page_contract import *  # noqa: F403
