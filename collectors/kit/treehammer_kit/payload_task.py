"""The payload's task, its result file and its errors."""

from __future__ import annotations

import json
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
        kind: ``timed``, ``control`` or ``checksum``; ``compile`` ends before a file is opened.
        urls: addresses that ROOT opens, in order; see :func:`make_plain_url`.
        adler32s: adler32 of each file, 8 hex digits, '' if unknown.
        passes: number of passes; a cold execution has exactly one.
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

    @classmethod
    def read(cls, path: str, folder: str) -> PayloadTask:
        """Read the payload's ``job.json``.

        Raises:
            PayloadError: the file is missing or invalid.
        """
        with parse_job(path) as document:
            execution = document["execution"]
            variant = execution["variant"]
            cold = variant.get("cache") == "cold"
            return cls(
                kind=execution["kind"],
                tree=execution["tree"],
                urls=[make_plain_url(item["url"]) for item in execution["files"]],
                adler32s=[item["adler32"] for item in execution["files"]],
                passes=1 if cold else max(1, int(execution["passes"])),
                seed=int(execution["seed"]),
                branches=variant.get("branches", 1.0),
                cache_bytes=round(1e6 * float(variant.get("cache_mb", 30))),
                events=float(variant.get("events", 1.0)),
                settings=document["settings"],
                folder=folder,
                metrics=document.get("metrics", ()),
                format=_parse_format(variant.get("format", TTREE)),
                counting=CountingTask(**document["counting"]) if "counting" in document else None,
                unreadable=execution.get("unreadable_branches", ()),
                missing_branches=execution.get("missing_branches", ()),
                threads=1 if execution["kind"] == "checksum" else int(variant.get("threads", 1)),
                prefetch=int(variant.get("prefetch", 0)),
                libraries=document.get("libraries", ()),
                imports=document.get("imports", ()),
                variant=variant,
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


def _parse_format(value: Any) -> str:
    if value not in (TTREE, RNTUPLE):
        raise ValueError(f"axis 'format': expected 'ttree' or 'rntuple', not {value!r}")
    return str(value)


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
