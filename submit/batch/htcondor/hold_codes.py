"""HTCondor's codes of held jobs: failure class, cause and remedy of each.

The codes are those of ``condor_holdcodes.h`` (HTCondor 25).  Policies of jobs, pools and machines have
a code of their own; their reason says which limit was exceeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from treehammer.analysis.status import failure_attribution
from treehammer.analysis.status.failure_attribution import FailureCause

HELD_CLASS = "held"
_EVICTED, _CREDENTIAL = "evicted", "credential"


@dataclass(frozen=True)
class HoldCause:
    """Cause of a hold: class of the failure, cause in a word or two, and remedy."""

    failure_class: str
    cause: str
    remedy: str


def _by_limit(failure_class: str, cause: FailureCause) -> HoldCause:
    return HoldCause(failure_class, cause.name, cause.action)


_MEMORY, _DISK, _TIME, _CPUS = (
    _by_limit(_EVICTED, cause)
    for cause in (
        failure_attribution.MEMORY,
        failure_attribution.DISK,
        failure_attribution.TIME,
        failure_attribution.CPUS,
    )
)
_CREDENTIALS = _by_limit(_CREDENTIAL, failure_attribution.CREDENTIALS)
_OUTPUT = HoldCause(
    HELD_CLASS,
    "transfer of outputs",
    "Check space and permissions of the submit folder, and the network of the node.",
)
_INPUT = HoldCause(
    HELD_CLASS,
    "transfer of inputs",
    "Check that the inputs still exist and that the node has space for them.",
)
_TRANSFER = HoldCause(
    HELD_CLASS,
    "file transfer",
    "Release the job (treehammer resume); tell the pool's administrator.",
)
_TRANSFER_SIZE = HoldCause(
    HELD_CLASS,
    "size of a transfer",
    "Ask for a larger MAX_TRANSFER_INPUT_MB or MAX_TRANSFER_OUTPUT_MB, or send less.",
)
_USER = HoldCause(HELD_CLASS, "a person", "Ask who held it; treehammer resume releases it.")
_POLICY = HoldCause(
    HELD_CLASS, "policy", "Ask the pool's administrator for the limit, or adapt the site's submit."
)
_START = HoldCause(
    HELD_CLASS, "start of the job", "Check the site's python, and the node's container software."
)
_NODE = HoldCause(
    HELD_CLASS, "node or pool", "Tell the pool's administrator; treehammer resume releases the job."
)
_CLOUD = HoldCause(HELD_CLASS, "cloud", "Check the account and limits at the cloud's provider.")

_CAUSES_BY_CODE: Mapping[int, HoldCause] = {
    1: _USER,
    2: _NODE,
    3: _POLICY,
    4: _CREDENTIALS,
    5: _POLICY,
    6: _START,
    7: _OUTPUT,
    8: _INPUT,
    9: _OUTPUT,
    10: _INPUT,
    11: _TRANSFER,
    12: _OUTPUT,
    13: _INPUT,
    14: _INPUT,
    15: _USER,
    16: _INPUT,
    17: _NODE,
    18: _TRANSFER,
    19: _START,
    20: _TIME,
    21: _POLICY,
    22: _OUTPUT,
    23: _NODE,
    24: _NODE,
    25: _POLICY,
    26: _POLICY,
    27: _POLICY,
    **dict.fromkeys(range(28, 32), _NODE),
    32: _TRANSFER_SIZE,
    33: _TRANSFER_SIZE,
    34: _MEMORY,
    35: _START,
    36: _NODE,
    **dict.fromkeys(range(37, 43), _CLOUD),
    43: _START,
    44: _START,
    45: _START,
    46: _TIME,
    47: _TIME,
    48: _START,
}
#: Codes whose reason, or subcode, names the cause: the job's, pool's and machine's policies, resources
#: in general, and unknown ones.
_GENERAL_CODES = (0, 2, 3, 21, 26, 34)
#: Codes of transfers, which fail by a full disk (ENOSPC, EDQUOT) as well.
_TRANSFER_CODES, _FULL_DISK_ERRNOS = (7, 9, 12, 13), (28, 122)
_CAUSES_BY_SUBCODE: Mapping[int, HoldCause] = {101: _CPUS, 102: _MEMORY, 104: _DISK}
#: Causes that the reason of a policy may name, by their names.
_CAUSES_BY_NAME = {
    hold_cause.cause: hold_cause for hold_cause in (_CREDENTIALS, _MEMORY, _DISK, _TIME, _CPUS)
}
_UNKNOWN = HoldCause(
    HELD_CLASS, "", "Ask the pool's administrator what holds jobs for this reason."
)


def find_hold_cause(reason: str, code: object, subcode: object) -> HoldCause:
    """Find the cause of a hold by its code, its subcode, and for policies by its reason."""
    number, detail = _parse_number(code), _parse_number(subcode)
    if number in _TRANSFER_CODES and detail in _FULL_DISK_ERRNOS:
        return _DISK
    cause_by_code = _CAUSES_BY_CODE.get(number)
    if cause_by_code is not None and number not in _GENERAL_CODES:
        return cause_by_code
    if number in (21, 34) and detail in _CAUSES_BY_SUBCODE:
        return _CAUSES_BY_SUBCODE[detail]
    if (cause := failure_attribution.find_cause_by_words(reason)) is not None:
        return _CAUSES_BY_NAME[cause.name]
    return cause_by_code or _UNKNOWN


def format_hold_reason(reason: str, code: object, subcode: object) -> str:
    """Format the reason of a hold: HTCondor's words and codes, the cause, and the remedy."""
    cause = find_hold_cause(reason, code, subcode)
    name = f": {cause.cause}" if cause.cause else ""
    text = reason.strip().rstrip(".") or "no reason given"
    return f"{text} (hold code {code}, subcode {subcode}{name}). {cause.remedy}"


def _parse_number(value: object) -> int:
    """Convert a code of an event or an ad; -1 for anything else."""
    text = str(value).strip()
    return int(text) if text.isdigit() else -1
