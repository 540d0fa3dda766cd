"""Fixtures of searches on this machine."""

from campaign_fixtures import _quick_polls, local_user

__all__ = ["_quick_polls", "local_user"]
