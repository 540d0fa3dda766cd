"""HTCondor's codes of held jobs: failure class, cause and remedy of each.

Policies of jobs, pools and machines have a code of their own; their reason says which limit was exceeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treehammer.analysis.status import failure_attribution
from treehammer.analysis.status.failure_attribution import FailureCause

HELD_CLASS = "held"


@dataclass(frozen=True)
class HoldCause:
    """Cause of a hold: class of the failure, cause in a word or two, and remedy."""

    failure_class: str
    cause: str
    remedy: str

    @classmethod
    def by_limit(cls, cause: FailureCause) -> HoldCause:
        """Return the hold of a job that exceeded a limit, or whose credential is invalid."""
        is_credential = cause is failure_attribution.CREDENTIALS
        return cls("credential" if is_credential else "evicted", cause.name, cause.action)


_DISK = HoldCause.by_limit(failure_attribution.DISK)
_TIME = HoldCause.by_limit(failure_attribution.TIME)
_MEMORY = HoldCause.by_limit(failure_attribution.MEMORY)
_CPUS = HoldCause.by_limit(failure_attribution.CPUS)
#: HTCondor's codes (``condor_holdcodes.h`` of version 25) -> cause.
_HOLD_CAUSES: Mapping[tuple[int, ...], HoldCause] = {
    (1, 15): HoldCause(HELD_CLASS, "a person", "Ask who held it; treehammer resume releases it."),
    (2, 17, 23, 24, 28, 29, 30, 31, 36): HoldCause(
        HELD_CLASS,
        "node or pool",
        "Tell the pool's administrator; treehammer resume releases the job.",
    ),
    (3, 5, 21, 25, 26, 27): HoldCause(
        HELD_CLASS,
        "policy",
        "Ask the pool's administrator for the limit, or adapt the site's submit.",
    ),
    (4,): HoldCause.by_limit(failure_attribution.CREDENTIALS),
    (6, 19, 35, 43, 44, 45, 48): HoldCause(
        HELD_CLASS,
        "start of the job",
        "Check the site's python, and the node's container software.",
    ),
    (7, 9, 12, 22): HoldCause(
        HELD_CLASS,
        "transfer of outputs",
        "Check space and permissions of the submit folder, and the network of the node.",
    ),
    (8, 10, 13, 14, 16): HoldCause(
        HELD_CLASS,
        "transfer of inputs",
        "Check that the inputs still exist and that the node has space for them.",
    ),
    (11, 18): HoldCause(
        HELD_CLASS,
        "file transfer",
        "Release the job (treehammer resume); tell the pool's administrator.",
    ),
    (20, 46, 47): _TIME,
    (32, 33): HoldCause(
        HELD_CLASS,
        "size of a transfer",
        "Ask for a larger MAX_TRANSFER_INPUT_MB or MAX_TRANSFER_OUTPUT_MB, or send less.",
    ),
    (34,): _MEMORY,
    (37, 38, 39, 40, 41, 42): HoldCause(
        HELD_CLASS, "cloud", "Check the account and limits at the cloud's provider."
    ),
}
_CAUSES_BY_CODE = {code: cause for codes, cause in _HOLD_CAUSES.items() for code in codes}
#: Codes whose subcode or reason names the cause: policies of the job, the pool and the machine,
#: resources in general, and unknown ones.
_GENERAL_CODES = (0, 2, 3, 21, 26, 34)
_CAUSES_BY_SUBCODE: Mapping[int, HoldCause] = {101: _CPUS, 102: _MEMORY, 104: _DISK}
#: Codes of transfers, which fail by a full disk (ENOSPC, EDQUOT) as well.
_TRANSFER_CODES, _FULL_DISK_ERRNOS = (7, 9, 12, 13), (28, 122)
_UNKNOWN_CAUSE = HoldCause(
    HELD_CLASS, "", "Ask the pool's administrator what holds jobs for this reason."
)
#: Code of a hold that lasts while the inputs of a job are sent to the schedd.
SPOOLING = 16


@dataclass(frozen=True)
class Hold:
    """A hold, by HTCondor's reason and codes."""

    reason: str
    code: object
    subcode: object

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Hold:
        """Return the hold that an ad or an event describes."""
        codes = values.get("HoldReasonCode"), values.get("HoldReasonSubCode")
        return cls(str(values.get("HoldReason") or ""), *codes)

    def find_cause(self) -> HoldCause:
        """Find the cause by code and subcode, and for policies by the words of the reason."""
        code, subcode = (parse_int(str(number)) for number in (self.code, self.subcode))
        if code in _TRANSFER_CODES and subcode in _FULL_DISK_ERRNOS:
            return _DISK
        cause = _CAUSES_BY_CODE.get(-1 if code is None else code)
        if cause is not None and code not in _GENERAL_CODES:
            return cause
        if code in (21, 34) and subcode is not None and subcode in _CAUSES_BY_SUBCODE:
            return _CAUSES_BY_SUBCODE[subcode]
        limit = failure_attribution.find_cause_by_words(self.reason)
        return HoldCause.by_limit(limit) if limit else cause or _UNKNOWN_CAUSE

    def __str__(self) -> str:
        """Format HTCondor's words and codes, the cause, and the remedy."""
        cause = self.find_cause()
        name = f": {cause.cause}" if cause.cause else ""
        text = self.reason.strip().rstrip(".") or "no reason given"
        return f"{text} (hold code {self.code}, subcode {self.subcode}{name}). {cause.remedy}"


def parse_int(text: str | None) -> int | None:
    """Convert a number of an event or an ad; None for anything else."""
    try:
        return int(text or "")
    except ValueError:
        return None
