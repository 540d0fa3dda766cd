"""Causes of holds, from the words and codes of batch systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from treehammer.analysis.status import failure_attribution
from treehammer.analysis.status.failure_attribution import FailureCause
from treehammer.submit.batch.interface import AttemptStatus, BatchEvent, Hold, JobStatus


class HoldCause(NamedTuple):
    """Cause of a hold: class of the failure, cause in a word or two, and remedy."""

    failure_class: str
    cause: str
    remedy: str

    @classmethod
    def by_limit(cls, cause: FailureCause) -> HoldCause:
        """Return the hold of a job that exceeded a limit, or whose credential is invalid."""
        is_credential = cause is failure_attribution.CREDENTIALS
        return cls("credential" if is_credential else BatchEvent.EVICTED, cause.name, cause.action)


def _held(cause: str, remedy: str) -> HoldCause:
    return HoldCause(BatchEvent.HELD, cause, remedy)


#: HTCondor's codes (``condor_holdcodes.h`` of version 25), some with a subcode -> cause.
_HOLD_CAUSES: Mapping[tuple[object, ...], HoldCause] = {
    (1, 15): _held("a person", "Ask who held it; treehammer resume releases it."),
    (2, 17, 23, 24, 28, 29, 30, 31, 36): _held(
        "node or pool", "Tell the pool's administrator; treehammer resume releases the job."
    ),
    (3, 5, 21, 25, 26, 27): _held(
        "policy", "Ask the pool's administrator for the limit, or adapt the site's submit."
    ),
    ((21, 101), (34, 101)): HoldCause.by_limit(failure_attribution.CPUS),
    ((21, 102), (34, 102), 34): HoldCause.by_limit(failure_attribution.MEMORY),
    # Transfers meet a full disk as ENOSPC or EDQUOT.
    ((21, 104), (34, 104), *product((7, 9, 12, 13), (28, 122))): HoldCause.by_limit(
        failure_attribution.DISK
    ),
    (4,): HoldCause.by_limit(failure_attribution.CREDENTIALS),
    (6, 19, 35, 43, 44, 45, 48): _held(
        "start of the job", "Check the site's python, and the node's container software."
    ),
    (7, 9, 12, 22): _held(
        "transfer of outputs",
        "Check space and permissions of the submit folder, and the network of the node.",
    ),
    (8, 10, 13, 14, 16): _held(
        "transfer of inputs",
        "Check that the inputs still exist and that the node has space for them.",
    ),
    (11, 18): _held(
        "file transfer", "Release the job (treehammer resume); tell the pool's administrator."
    ),
    (20, 46, 47): HoldCause.by_limit(failure_attribution.TIME),
    (32, 33): _held(
        "size of a transfer",
        "Ask for a larger MAX_TRANSFER_INPUT_MB or MAX_TRANSFER_OUTPUT_MB, or send less.",
    ),
    (37, 38, 39, 40, 41, 42): _held(
        "cloud", "Check the account and limits at the cloud's provider."
    ),
}
_CAUSES_BY_CODE = {code: cause for codes, cause in _HOLD_CAUSES.items() for code in codes}
_UNKNOWN_CAUSE = _held("", "Ask the pool's administrator what holds jobs for this reason.")
#: Codes whose reason may name the limit: policies of the job, the pool and the machine, resources in
#: general, and unknown ones.
_GENERAL_CODES = (None, 0, 2, 3, 21, 26, 34)


def find_hold_cause(hold: Hold) -> HoldCause:
    """Find the cause by code and subcode, and for policies by the words of the reason."""
    by_subcode = _CAUSES_BY_CODE.get((hold.code, hold.subcode))
    cause = by_subcode or _CAUSES_BY_CODE.get(hold.code, _UNKNOWN_CAUSE)
    if by_subcode or (cause is not _UNKNOWN_CAUSE and hold.code not in _GENERAL_CODES):
        return cause
    limit = failure_attribution.find_cause_by_words(hold.reason)
    return HoldCause.by_limit(limit) if limit else cause


def describe_hold(hold: Hold) -> str:
    """Format the words and codes of a hold, its cause, and the remedy."""
    cause = find_hold_cause(hold)
    codes = "" if hold.code is None else f"hold code {hold.code}, subcode {hold.subcode}"
    details = ": ".join(filter(None, (codes, cause.cause)))
    text = hold.reason.strip().rstrip(".") or "no reason given"
    return f"{text}{f' ({details})' if details else ''}. {cause.remedy}"


def explain_end(status: AttemptStatus | JobStatus) -> tuple[str, str]:
    """Return failure class and reason of a job that its batch system ended or holds; '' without any."""
    if status.hold is None:
        return status.event or "", status.reason
    parts = (describe_hold(status.hold), status.reason)
    return find_hold_cause(status.hold).failure_class, "; ".join(filter(None, parts))


def describe_holds(statuses: Iterable[JobStatus]) -> Iterator[str]:
    """Describe the holds of jobs, a line for each kind, the most frequent first."""
    holds = [s.hold for s in statuses if s.hold and not s.state.is_final]
    examples: dict[tuple[object, ...], Hold] = {}
    keys = [(h.code, h.subcode, "" if h.code is not None else h.reason) for h in holds]
    for key, hold in zip(keys, holds, strict=True):
        examples.setdefault(key, hold)
    for key, count in Counter(keys).most_common():
        jobs = "1 job is" if count == 1 else f"{count} jobs are"
        yield f"{jobs} held, e.g.: {describe_hold(examples[key])}"
