"""Fixtures of campaigns on this machine and at a pool."""

from campaign_fixtures import _quick_polls, local_user, service_process, spool, user

__all__ = ["_quick_polls", "local_user", "service_process", "spool", "user"]
