"""Limits of jobs in HTCondor pools: attempts, waiting times and memory."""

from __future__ import annotations

#: Starts of a job before it is given up.
MAX_GRID_ATTEMPTS = 3
#: Seconds that a job may wait for a machine, or stay held by a person.
IDLE_LIMIT_S = 24 * 3600
#: Seconds that a job may stay held for any other reason that time does not cure.
HOLD_LIMIT_S = 600
#: Seconds before a failed file transfer is retried.
RETRY_PAUSE_S = 30
#: Seconds that an evicted worker has to end its payload and write its results.
VACATE_GRACE_S = 60
#: Largest memory request of a job in MB: the usual share of a core.  Sites with more set their own
#: request_memory.
REQUEST_MEMORY_MB = 2000
#: Further MB for the second process of a job in paired mode.
SECOND_PROCESS_MEMORY_MB = 1000
#: Longest time in seconds without contact to its node before a job is given up.
MAX_LEASE_S = 1200


def lease_duration_s(wall_s: int) -> int:
    """Return the seconds without contact to its node after which a job is lost.

    HTCondor's default of 40 minutes would exceed the wall limit of a short job.
    """
    return min(wall_s, MAX_LEASE_S)
