"""Appointments: the instant and the place on which jobs agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional, Protocol


@dataclass(frozen=True)
class Appointment:
    """The common start.

    Attributes:
        start_us: microseconds since 1970 UTC, on the clock that all jobs share.
        present: jobs that had arrived when it was set.
        clock_offset_s: this node's clock minus the shared one; None if both are one clock.
        clock_error_s: bound of the error of ``clock_offset_s``.
    """

    start_us: int
    present: int
    clock_offset_s: Optional[float] = None
    clock_error_s: Optional[float] = None

    def to_document(self) -> Dict[str, Any]:
        """Return the values by name."""
        return asdict(self)


class RefusedError(Exception):
    """The jobs can never meet at this place; the message is one sentence."""


class Meeting(Protocol):
    """A place where jobs announce themselves and learn the common start."""

    #: Seconds between two calls of :meth:`poll`.
    pause_s: float
    #: Whether to go on after the appointment, so that a restarted place learns it again.
    repeat: bool

    def poll(self, waited_s: float, appointment: Optional[Appointment]) -> Optional[Appointment]:
        """Announce this job and request the appointment; None while jobs are missing.

        Args:
            waited_s: seconds since the first call.
            appointment: the one of the jobs, if this job has it already.

        Raises:
            OSError, ValueError: a failure that may pass.
            RefusedError: a failure that will not.
        """
        ...

    def withdraw(self) -> None:
        """Announce that this job will not come.

        Raises:
            OSError, ValueError, RefusedError: it cannot be announced.
        """
        ...
