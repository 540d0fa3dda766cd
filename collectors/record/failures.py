"""The failure taxonomy, and the exception that carries one.  Packed into the worker."""

from __future__ import annotations

from dataclasses import dataclass

#: Classes, in the order a job can meet them.
FAILURE_CLASSES = (
    "submission",
    "held",
    "evicted",
    "software-setup",
    "stage-in",
    "open",
    "read",
    "payload",
    "data-check",
    "upload",
    "lost",
)

#: Kind of what this release or set-up cannot do at all: it says nothing against site or release.
NOT_SUPPORTED = "not-supported"


@dataclass(frozen=True)
class Failure:
    """What went wrong, where, and whether trying again can help.

    Attributes:
        failure_class: one of :data:`CLASSES`.
        kind: finer than the class, e.g. ``timeout``, ``signal``, ``memory``, ``version``.
        phase: phase of the execution, e.g. ``setup``, ``open``, ``loop``.
        message: one clear sentence.
        transient: whether a retry can help.
    """

    failure_class: str
    kind: str
    phase: str
    message: str
    transient: bool = False


class ExecutionError(Exception):
    """Raised where an execution cannot go on; the worker turns it into a recorded failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
