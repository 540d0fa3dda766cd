"""Phases of an execution that is part of the load of many jobs; a vertical brings them in ``worker``."""

from __future__ import annotations

from typing import Any, ContextManager, Dict, Optional, Protocol

from ....verticals import import_parts
from ...job_spec import LoadSpec
from ..child_processes import StopSignals
from ..service_client import ServiceEndpoint


class LoadStart(Protocol):
    """The start of an execution's load."""

    def require_rest_of_load(self) -> None:
        """Refuse to begin when the load of the other jobs is over.

        Raises:
            ExecutionError: the load is over.
        """

    def describe_for_payload(self) -> Dict[str, Any]:
        """Return the object ``load`` of the payload's job.json."""

    def values(self, began_us: Optional[int] = None) -> Dict[str, Any]:
        """Return the worker-owned values; ``began_us`` is the payload's own time of its start."""


class LoadReport(Protocol):
    """Reports of a running load to the batch system."""

    @property
    def is_possible(self) -> bool:
        """Whether the batch system takes reports of this execution."""

    def send_if_due(self) -> None:
        """Report the last step if it is a new one and the last report was long enough ago."""

    def end(self) -> None:
        """Withdraw the last report."""


class LoadPhases(Protocol):
    """A job's part in the load."""

    @property
    def is_watch(self) -> bool:
        """Whether this job watches a server instead of loading it."""

    def wait(self, execution: str, *, is_first: bool = True) -> LoadStart:
        """Wait until the payload of an execution is to be launched.

        Raises:
            ExecutionError: a stop signal arrived.
        """

    def withdraw(self, execution: str) -> None:
        """Announce that an execution failed before its start, so that no job waits for it."""

    def announce_end(self, execution: str) -> None:
        """Announce that a job which loads has ended an execution, to those that watch."""

    def watching_end(self, execution: str, path: str) -> ContextManager[None]:
        """Let a file appear as soon as all jobs that load have ended, while the block runs."""

    def open_report(self, folder: str, attempt: int) -> LoadReport:
        """Open the reports of an execution, whose payload runs in a folder."""


def open_phases(
    load: Optional[LoadSpec],
    job_folder: str,
    endpoint: Optional[ServiceEndpoint],
    signals: StopSignals,
) -> Optional[LoadPhases]:
    """Open the phases of a job; None for one that is no part of a load."""
    if load is None:
        return None
    for part in import_parts("worker"):
        phases: LoadPhases = part.open_phases(load, job_folder, endpoint, signals)
        return phases
    return None
