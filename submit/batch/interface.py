"""The interface that every batch system stands behind.

A batch system owns its queue and knows jobs by *batch id*.  It takes rendered descriptions,
says in what state each is, gives back the output sandboxes, and cancels.  It knows nothing of
tests, variants or databases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from treehammer.collectors.job_state import JobState
from treehammer.errors import ConfigError


class UnknownBatchSystemError(ConfigError):
    """Nothing here tells what batch system a job names."""


@dataclass(frozen=True)
class JobDescription:
    """One rendered job, ready to be submitted.

    Attributes:
        job_id: our own identity of the job; submitting the same one twice is harmless.
        text: the rendered submit description.
        inputs: name in the job's sandbox -> local file or folder to copy there.
    """

    job_id: str
    text: str
    inputs: Mapping[str, Path]


@dataclass(frozen=True)
class AttemptStatus:
    """One execution of a job; times in microseconds since 1970 UTC, 0 = not yet.

    ``state`` is ``RUNNING`` or final.  ``exit_code`` is None where nobody could wait for the
    process, negative for a signal; ``reason`` says why the attempt did not end by itself.
    ``failure_class`` is one of :data:`treehammer.collectors.record.failures.FAILURE_CLASSES` where the batch system
    ended it, '' otherwise; ``host`` is the machine or slot, '' where that is not known.

    Numbers grow but may have gaps.
    """

    number: int
    state: JobState
    started_us: int
    ended_us: int
    exit_code: int | None
    reason: str
    failure_class: str = ""
    host: str = ""


@dataclass(frozen=True)
class JobStatus:
    """What the batch system knows of one job: its state and every attempt, oldest first.

    ``QUEUED`` with attempts means that the last one was lost and another will follow.
    ``failure_class`` and ``reason`` say why a job is held, or ended without an attempt to blame.
    """

    batch_id: str
    state: JobState
    attempts: tuple[AttemptStatus, ...] = ()
    failure_class: str = ""
    reason: str = ""


#: Given a job id and what the job was sent before (name in the sandbox -> file): what it is sent now.
InputReplacement = Callable[[str, Mapping[str, Path]], Mapping[str, Path]]


class BatchSystem(Protocol):
    """What ``submit`` and tracking need of a batch system."""

    name: str

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order and return job id -> batch id.

        Raises:
            treehammer.errors.BatchError: nothing was queued.
        """
        ...

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Job id -> batch id of the jobs that are in the queue, e.g. after a killed submitter."""
        ...

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """State of each known job; unknown ids are absent.

        Raises:
            treehammer.errors.BatchError: the batch system does not answer; nothing is known.
        """
        ...

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Attempt -> folder with its output (records/, logs/, attempt.json), as far as it came."""
        ...

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel what is not final and return how many were."""
        ...

    def release(self, batch_ids: Iterable[str]) -> int:
        """Let held jobs go on and return how many were held."""
        ...

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue jobs anew that are final, as they were submitted; asking twice queues them once.

        Args:
            earlier: batch id -> number of the job's last attempt so far; the next has the next.
            inputs: gives what a job is sent now.

        Returns:
            Old batch id -> new one, of the jobs that this batch system can queue anew.

        Raises:
            treehammer.errors.BatchError: not all were queued.
        """
        ...

    def explain_waiting(self, batch_ids: Iterable[str]) -> Sequence[str]:
        """What keeps these jobs from starting, a line each; empty when nothing does."""
        ...

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Forget jobs that are final, with their sandboxes; how many bytes that freed.

        A submission is forgotten only as a whole.

        Raises:
            treehammer.errors.BatchError: something cannot be removed.
        """
        ...
