"""States of a job, shared by batch systems, the database and the results service."""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """State of a job, the same for all batch systems."""

    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    DONE = "done"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good."""
        return self in (JobState.DONE, JobState.CANCELLED, JobState.LOST)


#: Values of the final states and of the others, as they are stored and sent.
FINAL_JOB_STATES = frozenset(state.value for state in JobState if state.is_final)
OPEN_JOB_STATES = tuple(state.value for state in JobState if not state.is_final)
