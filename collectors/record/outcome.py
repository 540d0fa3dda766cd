"""Failures of an execution, and the outcome of a measurement.

Standard library only, Python 3.9 and later, like the whole record: it is packed into the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, List, Mapping

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

#: Kind of a door that does not answer.
UNREACHABLE = "unreachable"

#: Kinds of an end of a payload that the worker or the kernel forced or explains: over its memory
#: limit, over its wall limit, on a full disk, at a silent door. No payload can report them.
FORCED_KINDS = ("memory", "timeout", "disk-full", UNREACHABLE)

#: Class of missing, expired and refused credentials, and of untrusted servers.
CREDENTIAL = "credential"

#: Kind of a feature that the release or setup lacks; it reflects on neither site nor release.
NOT_SUPPORTED = "not-supported"

#: Kind of the failure of a half of a launch whose other half failed.
OTHER_HALF = "other-half"


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


class Outcome(str, Enum):
    """Outcome of a measurement; only good ones are averaged."""

    GOOD = "good"
    #: The execution failed.
    FAILED = "failed"
    #: The execution completed, but its numbers cannot be true.
    IMPLAUSIBLE = "implausible"
    #: The release or setup lacks a feature; the site did not fail.
    NOT_SUPPORTED = "not supported"

    __str__ = str.__str__

    @property
    def key(self) -> str:
        """Name in tables and JSON."""
        return self.name.lower()


#: Columns that determine the outcome.
OUTCOME_COLUMNS = ("failure_class", "failure_kind", "plausible")
#: Failure class -> label of the outcome "not supported". Later phases need no optional feature.
UNSUPPORTED_LABELS = {
    name: f"{name}: {Outcome.NOT_SUPPORTED.value}" for name in ("software-setup", "stage-in")
}
#: Labels of every outcome but good.
BAD_OUTCOME_LABELS = (*FAILURE_CLASSES, Outcome.IMPLAUSIBLE.value, *UNSUPPORTED_LABELS.values())


def classify_outcome(row: Mapping[str, Any]) -> Outcome:
    """Derive a measurement's outcome from its :data:`OUTCOME_COLUMNS`."""
    failure_class = row["failure_class"]
    if not failure_class:
        return Outcome.GOOD if row["plausible"] else Outcome.IMPLAUSIBLE
    if row["failure_kind"] == NOT_SUPPORTED and failure_class in UNSUPPORTED_LABELS:
        return Outcome.NOT_SUPPORTED
    return Outcome.FAILED


def label_outcome(row: Mapping[str, Any]) -> str:
    """Name a measurement's outcome, and the failure class behind it if it has one."""
    outcome = classify_outcome(row)
    if outcome is Outcome.FAILED:
        return str(row["failure_class"])
    if outcome is Outcome.NOT_SUPPORTED:
        return UNSUPPORTED_LABELS[row["failure_class"]]
    return str(outcome)


_OUTCOMES_BY_LABEL = {
    Outcome.GOOD.value: Outcome.GOOD,
    Outcome.IMPLAUSIBLE.value: Outcome.IMPLAUSIBLE,
    **dict.fromkeys(UNSUPPORTED_LABELS.values(), Outcome.NOT_SUPPORTED),
}


def is_failure(label: str) -> bool:
    """Return whether an outcome label, as roll-ups have them, is a failure class."""
    return _OUTCOMES_BY_LABEL.get(label, Outcome.FAILED) is Outcome.FAILED


_NO_OUTCOMES = dict.fromkeys(Outcome, 0)


def sum_outcomes(counts: Mapping[str, int]) -> dict[Outcome, int]:
    """Sum counts by outcome label, as roll-ups have them, to counts of every outcome."""
    sums = _NO_OUTCOMES.copy()
    for label, count in counts.items():
        sums[_OUTCOMES_BY_LABEL.get(label, Outcome.FAILED)] += count
    return sums


def describe_outcomes(counts: Mapping[Outcome, int]) -> List[str]:
    """Describe the measurements that are not good by outcome: ``34 failed``, ``5 implausible``."""
    return [
        f"{counts[outcome]:,} {outcome}"
        for outcome in Outcome
        if outcome is not Outcome.GOOD and counts.get(outcome)
    ]
