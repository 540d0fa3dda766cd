"""Fixtures of campaigns in Slurm."""

from campaign_fixtures import _quick_polls, local_user, service_process, spool, user

__all__ = ["_quick_polls", "local_user", "service_process", "spool", "user"]
