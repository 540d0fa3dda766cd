"""The payload's task with its selection of branches, its result file and its errors.

Branches are selected by a seeded fraction, by patterns, or by a list in a file.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import json
import math
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union
from urllib.parse import unquote, urlsplit

TASK_FORMAT = 1

#: Formats of a dataset's files, the values of the axis ``format``.
TTREE, RNTUPLE = "ttree", "rntuple"

#: Kind of an execution that ends before it opens a file, to try the payload.
COMPILE = "compile"

#: Kind of an execution that reads untimed what a cache is to have before the timed one, and the name
#: by which it reports the share of the entries that it read.
PRIME, PRIMED_SHARE = "prime", "primed_share"

#: Paths in which no library sees a pattern, an option, a variable, a list or an object's name.
_PLAIN_PATH = re.compile(r"[\w./+=@%-]*")


class PayloadError(Exception):
    """A classified failure, with class, kind and phase as in the record."""

    def __init__(
        self, failure_class: str, kind: str, phase: str, message: str, *, transient: bool = False
    ) -> None:
        super().__init__(message)
        self.document: Dict[str, Any] = {
            "failure_class": failure_class,
            "kind": kind,
            "phase": phase,
            "message": message,
            "transient": transient,
        }


@contextmanager
def parse_job(path: str) -> Iterator[Dict[str, Any]]:
    """Read ``job.json`` and parse it in a block.

    Raises:
        PayloadError: the file is missing, or its document is invalid.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
        if document["format"] != TASK_FORMAT:
            raise ValueError(f"expected format {TASK_FORMAT}, not {document['format']}")
        yield document
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise PayloadError("payload", "bad-job", "setup", f"{path}: {reason}") from error


@dataclass(frozen=True)
class CountingTask:
    """Count of the last pass's instructions under callgrind.

    Attributes:
        header: path of valgrind's ``callgrind.h``.
        events: read at most this many events of each file; 0 for all.
    """

    header: str
    events: int


@dataclass(frozen=True)
class PayloadTask:
    """One execution.

    Attributes:
        kind: ``timed``, ``control`` or ``checksum``; ``compile`` ends before a file is opened, and
            ``prime`` reads without being measured.
        urls: addresses that ROOT opens, in order; see :func:`make_plain_url`.
        adler32s: adler32 of each file, 8 hex digits, '' if unknown.
        passes: number of passes; exactly one if a cache has a state before.
        branches: fraction (a number), or patterns, ``@file`` or ``readable`` (text).
        cache_bytes: size of the TTreeCache; 0 is off.  The cluster cache of an RNTuple has none,
            so that any other value turns it on.
        events: fraction of the events.
        settings: the test's ``[settings]``.
        format: ``ttree`` or ``rntuple``, the value of the test's axis ``format``.
        folder: the payload's folder, base of ``@file``.
        counting: count of instructions, None for a plain execution.
        variant: value of every axis.
        threads: number of threads, the value of the test's axis ``threads``.
        prefetch: the test's axis ``prefetch``: 1 if a TTreeCache prefetches asynchronously; of an
            RNTuple, clusters that are read at once; 0 is ROOT's choice.
        libraries: shared libraries to load before a file is opened.
        imports: Python modules to import before a file is opened.
        metrics: names of the metrics that the test declares.
        unreadable: branches that ``readable`` leaves out, and the checksum does not cover.
        missing_branches: branches that not all files of the dataset have, which no test reads.
        primed_share: share of the entries of each file, from the first one on, that ``prime`` reads.
    """

    kind: str
    tree: str
    urls: List[str]
    adler32s: List[str]
    passes: int
    seed: int
    branches: Union[float, str]
    cache_bytes: int
    events: float
    settings: Mapping[str, Any]
    folder: str
    metrics: Sequence[str] = ()
    format: str = TTREE
    counting: Optional[CountingTask] = None
    unreadable: Sequence[str] = ()
    missing_branches: Sequence[str] = ()
    threads: int = 1
    prefetch: int = 0
    libraries: Sequence[str] = ()
    imports: Sequence[str] = ()
    variant: Mapping[str, Any] = field(default_factory=dict)
    primed_share: float = 1.0

    @classmethod
    def read(cls, path: str, folder: str) -> PayloadTask:
        """Read the payload's ``job.json``.

        Raises:
            PayloadError: the file is missing or invalid.
        """
        with parse_job(path) as document:
            execution = document["execution"]
            variant = execution["variant"]
            reads_once = variant.get("cache") == "cold" or "server_cache" in variant
            primes_half = execution["kind"] == PRIME and variant.get("server_cache") == "half"
            format_ = _parse_format(variant)
            has_one_thread = execution["kind"] == "checksum" or primes_half
            return cls(
                kind=execution["kind"],
                tree=execution["tree"],
                urls=[make_plain_url(item["url"]) for item in execution["files"]],
                adler32s=[item["adler32"] for item in execution["files"]],
                passes=1 if reads_once else max(1, int(execution["passes"])),
                seed=int(execution["seed"]),
                branches=variant.get("branches", 1.0),
                cache_bytes=_choose_cache_bytes(variant, format_, primes_half),
                events=float(variant.get("events", 1.0)),
                settings=document["settings"],
                folder=folder,
                metrics=document.get("metrics", ()),
                format=format_,
                counting=CountingTask(**document["counting"]) if "counting" in document else None,
                unreadable=execution.get("unreadable_branches", ()),
                missing_branches=execution.get("missing_branches", ()),
                threads=1 if has_one_thread else int(variant.get("threads", 1)),
                prefetch=int(variant.get("prefetch", 0)),
                libraries=document.get("libraries", ()),
                imports=document.get("imports", ()),
                variant=variant,
                primed_share=0.5 if primes_half else 1.0,
            )


def make_plain_url(url: str) -> str:
    """Return an address of a local file that libraries open as it is; others are returned as given.

    ROOT takes ``?``, ``#``, ``|`` and ``$`` in a path for options, a member, alternatives and a
    variable, data frames ``*`` and ``[`` for a pattern, and uproot ``:`` for the start of an object's
    name.  Such a path is replaced by that of an open folder or file of this process.
    """
    is_url = url.startswith("file:")
    if "://" in url and not is_url:
        return url
    path = unquote(urlsplit(url).path) if is_url else url
    if _PLAIN_PATH.fullmatch(path):
        return url
    folder, name = os.path.split(path)
    try:
        if _PLAIN_PATH.fullmatch(name):
            return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}/{name}"
        return f"/proc/self/fd/{os.open(path, os.O_RDONLY)}"
    except OSError:
        return url  # ROOT reports the cause


def _parse_format(variant: Mapping[str, Any]) -> str:
    value = variant.get("format", TTREE)
    if value not in (TTREE, RNTUPLE):
        raise ValueError(f"axis 'format': expected 'ttree' or 'rntuple', not {value!r}")
    return str(value)


def _choose_cache_bytes(variant: Mapping[str, Any], format_: str, primes_half: bool) -> int:
    """Return the size of the cache: that of the variant, or 0 to prime half of a TTree."""
    # A TTreeCache would read the clusters that follow, too.
    cache_mb = 0 if primes_half and format_ == TTREE else variant.get("cache_mb", 30)
    return round(1e6 * float(cache_mb))


def write_result(
    path: str,
    values: Mapping[str, Any],
    extras: Mapping[str, float],
    failure: Optional[Mapping[str, Any]],
    operations: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write ``result.json`` so that readers see either nothing or the whole file."""
    document = {
        "format": TASK_FORMAT,
        "values": values,
        "extras": extras,
        "failure": failure,
        "operations": list(operations),
    }
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(document, stream, allow_nan=False)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


#: Value of the axis ``branches``: all branches that ROOT can read.
READABLE = "readable"


def select_branches(
    names: Sequence[str],
    counters: Mapping[str, Sequence[str]],
    request: Union[float, str],
    *,
    seed: int,
    folder: str,
    unreadable: Sequence[str] = (),
) -> List[int]:
    """Select the branches to read; return their positions, ascending.

    Args:
        names: top-level branches in the tree's order.
        counters: branch -> branches with the sizes of its arrays, which are read as well.
        request: fraction in (0, 1], patterns (``Muon_*,Jet_pt``) or ``@file`` with one pattern
            per line, or ``readable``. A pattern after ``!`` excludes branches; if all do, all other
            branches are read.
        seed: seed of a fraction.
        folder: base of ``@file``.
        unreadable: branches that ``readable`` leaves out.

    Raises:
        PayloadError: a pattern matches nothing, or the list cannot be read (class ``open``).
    """
    if request == READABLE:
        without = set(unreadable)
        selection = dict.fromkeys(name for name in names if name not in without)
    elif isinstance(request, str):
        selection = _match_patterns(names, _load_patterns(request, folder))
    else:
        selection = select_fraction(names, request, seed)
    if not selection:
        message = f"branches = {request!r} leaves none to read"
        raise PayloadError("open", "branch", "prepare", message)
    for name in list(selection):
        selection.update(dict.fromkeys(counters.get(name, ())))
    return [position for position, name in enumerate(names) if name in selection]


def select_fraction(names: Sequence[str], share: float, seed: int) -> Dict[str, None]:
    """Select the ``max(1, round(share * n))`` names with the smallest seeded hashes.

    The selection depends on names alone, and a smaller share is a subset of a larger one.
    """
    count = min(len(names), max(1, math.floor(share * len(names) + 0.5)))
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    return dict.fromkeys(ranked[:count])


def _load_patterns(request: str, folder: str) -> List[str]:
    if not request.startswith("@"):
        return [part.strip() for part in request.split(",") if part.strip()]
    path = os.path.join(folder, request[1:])
    try:
        with open(path, encoding="utf-8-sig") as stream:
            lines = [line.split("#", 1)[0].strip() for line in stream]
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}"
        raise PayloadError("open", "branch-list", "prepare", message) from error
    return [line for line in lines if line]


def _match_patterns(names: Sequence[str], patterns: Sequence[str]) -> Dict[str, None]:
    if not patterns:
        raise PayloadError("open", "branch", "prepare", "the list of branches is empty")
    selection: Dict[str, None] = {}
    if all(pattern.startswith("!") for pattern in patterns):
        selection = dict.fromkeys(names)
    for pattern in patterns:
        if pattern.startswith("!"):
            for name in _match_pattern(names, pattern[1:]):
                selection.pop(name, None)
        else:
            selection.update(dict.fromkeys(_match_pattern(names, pattern)))
    return selection


def _match_pattern(names: Sequence[str], pattern: str) -> List[str]:
    # A literal name takes precedence: names may contain brackets.
    matches = [pattern] if pattern in names else fnmatch.filter(names, pattern)
    if matches:
        return matches
    near = difflib.get_close_matches(pattern, names, n=3)
    hint = f"; near: {', '.join(near)}" if near else ""
    message = f"no branch matches {pattern!r}{hint} (the tree has {len(names)})"
    raise PayloadError("open", "branch", "prepare", message)
