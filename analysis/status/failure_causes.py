"""Causes of failures by their class and message, each with the action that helps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FailureCause:
    """Cause of failures: its name, and one suggested action."""

    name: str
    action: str


MEMORY = FailureCause(
    "memory",
    "Raise the test's memory_limit_mb up to 2000, or request_memory in the site's submit.",
)
DISK = FailureCause("disk", "Raise request_disk in the site's submit, or stage less.")
TIME = FailureCause(
    "time",
    "Measure less in a job, or lower the test's wall_limit_s below the limit of the site.",
)
CPUS = FailureCause("CPUs", "Raise request_cpus in the site's submit, or lower threads.")
CREDENTIALS = FailureCause(
    "credential", "Renew it, then: treehammer resume, with --proxy or --token-file."
)
_NETWORK = FailureCause(
    "network", "Check the route from the site's nodes to the door, and that the door answers."
)
_DOOR = FailureCause(
    "door", "Check the door and its files: treehammer sites check, treehammer datasets verify."
)
_REPLICAS = FailureCause(
    "replica", "Check the files at the door: treehammer datasets verify, with --full."
)
_SOFTWARE = FailureCause(
    "software", "Check that the site's nodes can set up this release, with the site's setup."
)
_COMPILER = FailureCause(
    "build", "Read the compiler's output on the job's page; check the node's compiler."
)
_TEST = FailureCause(
    "payload", "Read the end of its output on the job's page; try the test with treehammer try."
)
_SERVICE = FailureCause(
    "upload", "Check that the site's nodes reach the results service, and its token."
)
_BATCH = FailureCause(
    "batch system", "Read the job's message; ask the pool's administrator, then treehammer resume."
)
_VALUES = FailureCause(
    "implausible values", "Read the reasons in the table of failures of that day."
)

#: Words of a message, tried in this order, where the class does not name the cause.
_CAUSES_BY_WORD: tuple[tuple[str, FailureCause], ...] = (
    (r"proxy|x509|credential|\btokens?\b|certificate", CREDENTIALS),
    (r"memory|\brss\b|\boom\b|residentset", MEMORY),
    (r"\bdisk|scratch|quota|no space", DISK),
    (r"wall.?(clock|time|.limit)|run.?time|duration|time limit|too long|\bhours\b|cpu.?time", TIME),
    (r"\bcpus?\b|\bcores?\b", CPUS),
)
_NETWORK_WORDS = (
    r"timed? ?out|connection|unreachable|no route|refused|reset|resolve|network|name or service"
)
_CAUSES_BY_CLASS: Mapping[str, FailureCause] = {
    "credential": CREDENTIALS,
    "software-setup": _SOFTWARE,
    "build": _COMPILER,
    "stage-in": _DOOR,
    "open": _DOOR,
    "read": _DOOR,
    "data-check": _REPLICAS,
    "payload": _TEST,
    "upload": _SERVICE,
    "implausible": _VALUES,
}
#: Classes of access to the data, and with those of its content.
_ACCESS = ("stage-in", "open", "read")
STORAGE_CLASSES = (*_ACCESS, "data-check")
#: Classes whose message may name memory, disk or time.
_LIMITED = ("held", "evicted", "payload", "lost", "submission")


def find_cause_by_words(message: str) -> FailureCause | None:
    """Find the cause that the words of a message name; None without any."""
    for words, cause in _CAUSES_BY_WORD:
        if re.search(words, message, re.IGNORECASE):
            return cause
    return None


def find_failure_cause(failure: str, message: str) -> FailureCause:
    """Find the cause of failures by their class, or ``implausible``, and a message."""
    if failure in _LIMITED and (cause := find_cause_by_words(message)):
        return cause
    if failure in _ACCESS and re.search(r"no space|quota", message, re.IGNORECASE):
        return DISK
    if failure in _ACCESS and re.search(_NETWORK_WORDS, message, re.IGNORECASE):
        return _NETWORK
    return _CAUSES_BY_CLASS.get(failure, _BATCH)
