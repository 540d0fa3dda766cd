"""What the store promises everywhere, in H2's Oracle mode."""

from store_contract import *  # noqa: F403
