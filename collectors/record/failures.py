"""Failure taxonomy and the exception that carries a failure. Packed into the worker."""

from __future__ import annotations

from dataclasses import dataclass

#: Failure classes in the order of a job's phases.
FAILURE_CLASSES = (
    "submission",
    "held",
    "evicted",
    "software-setup",
    "build",
    "credential",
    "stage-in",
    "open",
    "read",
    "payload",
    "data-check",
    "upload",
    "lost",
)

#: Classes of executions that the infrastructure interrupted: nothing was measured, and a retry may
#: succeed.
INTERRUPTED_CLASSES = ("submission", "held", "evicted", "upload", "lost")

#: Class of missing, expired and refused credentials, and of untrusted servers.
CREDENTIAL = "credential"

#: Kind of a feature that the release or setup lacks; it reflects on neither site nor release.
NOT_SUPPORTED = "not-supported"


@dataclass(frozen=True)
class Failure:
    """Failure of an execution: class, phase, message and prospects of a retry.

    Attributes:
        failure_class: one of :data:`FAILURE_CLASSES`.
        kind: finer than the class, e.g. ``timeout``, ``signal``, ``memory``, ``version``.
        phase: phase of the execution, e.g. ``setup``, ``open``, ``loop``.
        message: one clear sentence.
        transient: True if a retry can succeed.
    """

    failure_class: str
    kind: str
    phase: str
    message: str
    transient: bool = False


class ExecutionError(Exception):
    """Aborts an execution; the worker converts it to a recorded failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
