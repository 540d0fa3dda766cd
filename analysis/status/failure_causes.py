"""Causes of failures by class, kind and message, each with one suggested action."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from treehammer.collectors.record.node_needs import NODE_NEEDS, parse_lack
from treehammer.collectors.record.outcome import FORCED_KINDS, OTHER_HALF
from treehammer.sql.read.failure_counts import FailureSign


@dataclass(frozen=True)
class FailureCause:
    """Cause of failures: its name, and one suggested action."""

    name: str
    action: str


MEMORY = FailureCause(
    "memory",
    "Raise the test's memory_limit_mb, and the site's ceilings.memory_mb if it is less.",
)
DISK = FailureCause("disk", "Raise request_disk in the site's submit, or stage less.")
TIME = FailureCause(
    "time",
    "Measure less in a job, or lower the test's wall_limit_s below the limit of the site.",
)
_WALL_LIMIT = FailureCause("time", "Raise the test's wall_limit_s, or read less in an execution.")
CPUS = FailureCause("CPUs", "Raise request_cpus in the site's submit, or lower threads.")
_credential = partial(FailureCause, "credential")
CREDENTIALS = _credential("Renew it, then: treehammer resume, with --proxy or --token-file.")
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
_NODE = FailureCause("node", "Pass its error to the site's administrator.")
_COMPILER = FailureCause(
    "build", "Read the compiler's output on the job's page; check the node's compiler."
)
_TEST = FailureCause(
    "payload", "Read the end of its output on the job's page; try the test with treehammer try."
)
DATASET = FailureCause(
    "dataset",
    "Add its files with treehammer datasets add, which names what is wrong, or choose other branches.",
)
_SERVICE = FailureCause(
    "upload", "Check that the site's nodes reach the results service, and its token."
)
_BATCH = FailureCause(
    "batch system", "Read the job's message; ask the pool's administrator, then treehammer resume."
)
IMPLAUSIBLE_VALUES = FailureCause(
    "implausible values", "Read the reasons in the table of failures of that day."
)

#: Words of a batch system, tried in this order.
_CAUSES_BY_WORD: tuple[tuple[str, FailureCause], ...] = (
    (r"proxy|x509|voms|credential|tokens?\b|certificate", CREDENTIALS),
    # It did not run, or its node was lost, so none of its limits matters.
    (r"\b(idle|queued|in (the )?queue) (for|more|longer|without)\b|\bdisconnected", _BATCH),
    (r"memory|\bv?mem(\b|limit)|imagesize|\brss\b|\boom(\b|_)|residentset", MEMORY),
    (r"disk|scratch|quota|no space", DISK),
    (r"wall.?(clock|time|.limit)|run.?time|duration|time limit|too long|\bhours\b|cpu.?time", TIME),
    (r"\bcpus?\b|\bcores?\b", CPUS),
)
#: Words of a person, and names of files, hosts, slots and jobs, which state nothing; attributes of ads
#: are no hosts.
_NAMES = re.compile(
    r"[^;]*\(by user [^()]*\)|\S*[/@]\S*|\b(?!(?:MY|TARGET)\.)[\w-]+(?:\.[\w-]*[a-z][\w-]*)+"
    r"|(?<!-)\b(?!(?:out-of-memory|(?:run|wall|cpu)-(?:time|clock)|time-limit)\b)\w+(?:-\w+)+",
    re.IGNORECASE,
)
#: Failure of the half of a launch whose other half failed, with class and kind of that.
_OTHER_HALF = re.compile(
    r"The other half of the launch failed \(([\w-]+)/([\w-]+)\): (.*)", re.DOTALL
)
#: Beginning of the message of an attempt, with its host.
_RETURNED = re.compile(r"\d+ of \d+ measurements arrived( at \S+)?: ")
#: End of the message of a hold, with its cause and remedy; what follows says who removed the job.
_HOLD = re.compile(
    r"\(hold code [^:()]+: (?P<cause>[^()]+)\)\. (?P<remedy>[^;]*(;(?! removed from)[^;]*)*)"
)
#: Marks of a client of storage in a message: of ROOT, XRootD, davix, curl, or an error of the system.
_CLIENT = re.compile(
    r"(?i)\[(ERROR|FATAL|Errno -?\d+|\d{4})\]|\bT\w*File\b|\bHTTP\b|davix|curl|\bto host\b|disconnected"
)
#: Words of a client of storage, tried in this order: answers of a server first.
_CAUSES_BY_CLIENT_WORD = (
    (r"\[30\d\d\]|HTTP (Error )?(408|5\d\d)|gateway time|object store answers", _DOOR),
    (r"no space|quota exceeded", DISK),
    (
        r"timed? ?out|operation (expired|interrupted)|connect(ion| call| to)|\baddress|name or service|unreachable"
        r"|no route|(?<!permission )refused|reset|resol(ve|ution)|network|disconnect|broken pipe|empty reply|transfer closed"
        r"|host is down|socket|hand ?shake|violation of protocol|IncompleteRead|(answer|complete) (within|after) \d",
        _NETWORK,
    ),
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
    "implausible": IMPLAUSIBLE_VALUES,
}
_LIMITS = (MEMORY, DISK, TIME, CPUS)
#: Causes that a test, its files or its resources may have.
CAUSES_OF_TESTS = frozenset(
    cause.name
    for cause in (*_LIMITS, _DOOR, _SOFTWARE, _COMPILER, _TEST, DATASET, IMPLAUSIBLE_VALUES)
)
#: Classes of access to the data, and with those of its content.
_ACCESS = ("stage-in", "open", "read")
STORAGE_CLASSES = (*_ACCESS, "data-check")
#: Causes by class and kind.
_CAUSES_BY_KIND: Mapping[tuple[str, str], FailureCause] = {
    # Ends of a payload that the worker or the kernel forced or explains.
    **{
        (label, kind): cause
        for label in ("payload", *_ACCESS)
        for kind, cause in zip(FORCED_KINDS, (MEMORY, _WALL_LIMIT, DISK, _NETWORK), strict=True)
    },
    # The kit refuses files that are the same at every door, and tests that select none of their branches.
    ("open", "branch"): DATASET,
    ("open", "tree"): DATASET,
    ("open", "branch-list"): _TEST,
    ("payload", "branches"): DATASET,
    ("payload", "files"): DATASET,
    ("software-setup", "cpu-limit"): TIME,
    ("software-setup", "disk-full"): DISK,
    ("software-setup", "file-limit"): DISK,
    ("software-setup", "node"): _NODE,
    ("software-setup", ""): _NODE,  # its shell could not start the worker
    ("credential", "certificate"): _DOOR,
    ("credential", "missing"): _credential(
        "Submit with --proxy, --token-file or --s3-credentials."
    ),
    ("credential", "untrusted"): _credential("Name its authorities: --authorities, or cert_dir."),
    ("credential", "refused"): _credential("Let the door accept it: issuer, audience, VO or keys."),
    ("credential", "not-permitted"): _credential("Get the right to its path: a scope or role."),
}
#: Classes and kinds whose message may name what a node lacks.
_LACKS = frozenset(("software-setup", kind) for kind in ("", *NODE_NEEDS))
#: Classes whose message a batch system or the worker wrote; payloads cannot report them.
_BATCH_CLASSES = ("held", "evicted", "lost", "submission")


def find_cause_by_words(
    message: str, causes: Sequence[tuple[str, FailureCause]] = _CAUSES_BY_WORD
) -> FailureCause | None:
    """Find the cause that words state, by default those of a batch system; None without any."""
    statement = _NAMES.sub("", message)
    matches = (cause for words, cause in causes if re.search(words, statement, re.IGNORECASE))
    return next(matches, None)


@lru_cache(maxsize=10_000)
def find_failure_cause(failure: FailureSign) -> FailureCause:
    """Find the cause that the worker, the kernel, a client of storage or the batch system states.

    The message of a payload decides nothing.
    """
    label, kind, message = failure
    if kind == OTHER_HALF and (half := _OTHER_HALF.match(message)):
        label, kind, message = half.groups()
    if label in _BATCH_CLASSES:
        statement = _RETURNED.sub("", message)
        if hold := _HOLD.search(statement):
            return FailureCause(hold["cause"], hold["remedy"].strip())
        return find_cause_by_words(statement) or _BATCH
    if (label, kind) in _LACKS and (lack := parse_lack(message)):
        name, remedy = lack
        return FailureCause(f"node: {name}", f"{remedy[:1].upper()}{remedy[1:]}.")
    cause = _CAUSES_BY_KIND.get((label, kind)) or _find_client_cause(label, message)
    return cause or _CAUSES_BY_CLASS.get(label, _BATCH)


def _find_client_cause(label: str, message: str) -> FailureCause | None:
    """Find the cause that a client of storage states; None for other messages."""
    is_of_client = label == "stage-in" or (label in _ACCESS and _CLIENT.search(message))
    return find_cause_by_words(message, _CAUSES_BY_CLIENT_WORD) if is_of_client else None


def count_causes(failures: Mapping[FailureSign, int]) -> Counter[str]:
    """Count failures by the name of their cause; those of access to storage and its files are one.

    A storage that fails refuses connections, breaks reads or returns damaged files.
    """
    counts: Counter[str] = Counter()
    for sign, count in failures.items():
        cause = find_failure_cause(sign)
        counts[(_DOOR if cause in (_NETWORK, _REPLICAS) else cause).name] += count
    return counts
