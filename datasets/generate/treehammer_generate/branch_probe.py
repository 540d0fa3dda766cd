"""Probe of branches: they are read in child processes, which may crash."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple, TextIO

import ROOT
from treehammer_kit import root_engine
from treehammer_kit.payload_task import PayloadError, make_plain_url
from treehammer_kit.pyroot import make_vector
from treehammer_kit.root_engine import load_library

from .file_inspection import (
    RequestError,
    declare_header,
    explain_exceptions,
    find_object,
    find_tree,
    open_file,
    send_message,
)

#: Compressed bytes of a tree up to which all entries are read; of a larger one the first ones are.
ALL_ENTRIES_BYTES = 100_000_000
FIRST_ENTRIES = 2000
#: Seconds for all entries, after which the branch that is being read counts as unreadable.
TIMEOUT_S = 600.0
#: Seconds for finding the branches that fail together, after which the untried ones are left out.
REDUCTION_TIMEOUT_S = 900.0
#: Branches of classes without dictionary that are read by one child, each alone if that child fails.
GROUP_SIZE = 16
#: Seconds between two reports of progress.
PROGRESS_INTERVAL_S = 1.0
#: Bytes at the end of a failed child's output that are kept.
MAX_LOG_BYTES = 200_000
KILLED = "was killed, as the kernel does where memory is short; make room and repeat"


class _FailedRead(NamedTuple):
    """ROOT's output in a child that failed, and how it ended."""

    log: str
    end: str


#: Reads the branches at these positions, and writes the current one and the thousandths of the entries
#: that were read to an address. Returns the failed ones with their messages, '' where ROOT's output has
#: it.
_ReadBranches = Callable[[Sequence[int], int], dict[int, str]]


class _Progress:
    """Progress over several phases, in branches, that never goes back."""

    def __init__(self, channel: TextIO, branches: int) -> None:
        self._channel, self._branches = channel, branches
        self._start = self._end = 0.0
        self._done = 0

    def begin(self, end: float) -> None:
        """Begin the phase that ends with this share of the work."""
        self._start, self._end = self._end, end
        self.report(0.0)

    def report(self, share: float) -> None:
        """Report the share of the phase that is done."""
        branches = int(self._branches * (self._start + share * (self._end - self._start)))
        self._done = max(self._done, branches)
        send_message(self._channel, {"done": self._done})


def probe_branches(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Read the branches of a TTree or the fields of an RNTuple.

    Unreadable branches come with name, class ('' of plain leaves), ROOT's output and end.
    """
    path, name = request["path"], request["tree"]
    for library in request["libraries"]:
        if problem := load_library(ROOT, library):
            raise RequestError(library, problem)
    file = open_file(path, channel, name)
    if find_object(file, path, name).is_ntuple:
        unreadable = _probe_ntuple(file, path, name, channel)
    else:
        unreadable = _probe_tree(file, path, name, channel)
    return {"root": str(ROOT.gROOT.GetVersion()), "unreadable": unreadable}


def _probe_tree(file: Any, path: str, name: str, channel: TextIO) -> list[dict[str, str]]:
    """Read the branches of classes without dictionary first, then all of them, entry by entry.

    A read of such a class may damage the memory and crash later, in another branch's read. Hence they
    are read in small groups, and each alone where a group fails. All are then read again and again
    without the one at which ROOT failed, and at last together as a test reads them.
    """
    root_engine.compile_kit(ROOT)
    declare_header("probe.hpp")
    tree = find_tree(file, path, name)[1]
    branches = [
        {"name": str(branch.GetName()), "class": str(branch.GetClassName())}
        for branch in tree.GetListOfBranches()
    ]
    entries = int(tree.GetEntries())
    if tree.GetZipBytes() > ALL_ENTRIES_BYTES:
        entries = min(entries, FIRST_ENTRIES)
    tree.SetCacheSize(0)
    url = make_plain_url(path)
    # Compiles the calls, which each child would do again.
    no_branches = make_vector(ROOT, "int", ())
    ROOT.treehammer.ReadBranches(tree, no_branches, 0, 0)
    ROOT.treehammer.ReadTogether(url, name, no_branches, 0, 0)

    def read(positions: Sequence[int], address: int) -> dict[int, str]:
        selection = make_vector(ROOT, "int", positions)
        failed = ROOT.treehammer.ReadBranches(tree, selection, entries, address)
        return {int(failed): ""} if failed >= 0 else {}

    def read_together(positions: Sequence[int], address: int) -> dict[int, str]:
        selection = make_vector(ROOT, "int", positions)
        read_all = ROOT.treehammer.ReadTogether
        return {} if read_all(url, name, selection, entries, address) else {positions[0]: ""}

    failures: dict[int, _FailedRead] = {}
    progress = _Progress(channel, len(branches))
    suspicious = [
        position
        for position, branch in enumerate(branches)
        if branch["class"] and not _has_dictionary(branch["class"])
    ]
    _read_in_groups(read, suspicious, failures, progress)
    _drop_failing_branches(read, len(branches), failures, progress)
    order = sorted(range(len(branches)), key=set(suspicious).__contains__)
    _reduce_until_clean(
        read_together, [at for at in order if at not in failures], failures, progress
    )
    return _list_failed(branches, failures)


def _read_in_groups(
    read: _ReadBranches,
    positions: Sequence[int],
    failures: dict[int, _FailedRead],
    progress: _Progress,
) -> None:
    """Read branches in groups, and each alone of a group that fails; add those to ``failures``.

    A child of its own for each takes a tenth of a second, most of which is its start.
    """
    progress.begin(1 / 3 if positions else 0.0)
    for first in range(0, len(positions), GROUP_SIZE):
        group = positions[first : first + GROUP_SIZE]
        if _find_failing_branches(read, group):
            for position in group:
                failures.update(_find_failing_branches(read, [position]))
        progress.report((first + len(group)) / len(positions))


def _probe_ntuple(file: Any, path: str, name: str, channel: TextIO) -> list[dict[str, str]]:
    """Read the fields of an RNTuple one by one, then together; return the unreadable ones."""
    try:
        root_engine.compile_ntuple_header(ROOT, "ntuple.hpp")
    except PayloadError as error:
        raise RequestError(path, str(error)) from error
    declare_header("ntuple_probe.hpp")
    with explain_exceptions(path):
        items = ROOT.treehammer.ListFields(file, name)
    fields = [{"name": str(item.first), "class": str(item.second)} for item in items]
    # Compiles the call, which each child would do again.
    ROOT.treehammer.ReadFields(file, name, make_vector(ROOT, "int", ()), 0)

    def read(positions: Sequence[int], address: int) -> dict[int, str]:
        selection = make_vector(ROOT, "int", positions)
        failed = ROOT.treehammer.ReadFields(file, name, selection, address)
        return {int(item.first): f"ReadError: {item.second}" for item in failed}

    def read_together(positions: Sequence[int], address: int) -> dict[int, str]:
        return {**read(positions, address), **read(positions, address)}

    failures: dict[int, _FailedRead] = {}
    progress = _Progress(channel, len(fields))
    _drop_failing_branches(read, len(fields), failures, progress)
    order = [at for at, _ in enumerate(fields) if at not in failures]
    _reduce_until_clean(read_together, order, failures, progress)
    return _list_failed(fields, failures)


def _drop_failing_branches(
    read: _ReadBranches, count: int, failures: dict[int, _FailedRead], progress: _Progress
) -> None:
    """Read all but the failing branches until none fails; add the failing ones to ``failures``."""
    progress.begin(2 / 3)
    while remaining := [position for position in range(count) if position not in failures]:
        failed = _find_failing_branches(read, remaining, progress.report)
        if not failed:
            break
        failures.update(failed)


def _reduce_until_clean(
    read: _ReadBranches, order: Sequence[int], failures: dict[int, _FailedRead], progress: _Progress
) -> None:
    """Read branches together; leave out those with which it fails, and add them to ``failures``.

    Branches that can be read one after the other may still damage the memory together. A group of
    branches is added to a clean one as long as their read is clean, and divided otherwise.

    Args:
        read: reads branches as a test does, twice.
        order: branches to read; of several that fail together, the last ones are left out.
        failures: gets the branches that are left out.
        progress: gets the share of the branches that are read.
    """
    progress.begin(1.0)
    clean: list[int] = []
    groups = [list(order)]
    deadline = time.monotonic() + REDUCTION_TIMEOUT_S
    while groups:
        group = groups.pop()
        if not group:
            continue
        if time.monotonic() > deadline:
            end = f"was not tried with others within {REDUCTION_TIMEOUT_S:.0f} s"
            failures.update(dict.fromkeys(group, _FailedRead("", end)))
            continue
        progress.report(len(clean) / len(order))
        failed = _find_failing_branches(read, sorted([*clean, *group]), progress.report)
        if not failed:
            clean += group
        elif len(group) == 1:
            failure = next(iter(failed.values()))
            failures[group[0]] = failure._replace(end=f"together with others {failure.end}")
        else:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    progress.report(1.0)


def _list_failed(
    branches: Sequence[dict[str, str]], failures: dict[int, _FailedRead]
) -> list[dict[str, str]]:
    return [{**branches[position], **failures[position]._asdict()} for position in sorted(failures)]


def _has_dictionary(name: str) -> bool:
    root_class = ROOT.TClass.GetClass(name)
    return bool(root_class) and bool(root_class.HasDictionary())


def _find_failing_branches(
    read: _ReadBranches,
    positions: Sequence[int],
    report_share: Callable[[float], None] | None = None,
) -> dict[int, _FailedRead]:
    """Read these branches in a child, and report its progress; return those at which it failed.

    The child inherits the open tree: opening a file with many classes would take longer than
    reading one branch. This process never reads a branch, so each child begins with sound memory.
    """
    with (
        mmap.mmap(-1, mmap.PAGESIZE) as shared,
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryFile() as report,
    ):
        # Position, and thousandths of the entries.
        current = (ctypes.c_int * 2).from_buffer(shared)
        current[0] = positions[0]
        is_late, child = False, os.fork()
        if not child:
            _read_in_child(read, positions, log, report, current)
        pidfd = os.pidfd_open(child)
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not select.select([pidfd], [], [], PROGRESS_INTERVAL_S)[0]:
                if report_share:
                    report_share(current[1] / 1000)
                if is_late := time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                    break
        finally:
            os.close(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        last_position = current[0]
        del current  # holds the memory open
        if code == -signal.SIGKILL and not is_late:  # no branch does this
            raise RequestError("a process that reads branches", KILLED)
        log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        text = log.read().decode("utf-8", "replace")
        if code:
            return {last_position: _FailedRead(text, _describe_end(code))}
        report.seek(0)
        return {
            int(position): _FailedRead(message or text, "failed")
            for position, message in json.loads(report.read()).items()
        }


def _describe_end(code: int) -> str:
    if code == -signal.SIGKILL:
        return f"took longer than {TIMEOUT_S:.0f} s"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"


def _read_in_child(
    read: _ReadBranches,
    positions: Sequence[int],
    log: IO[bytes],
    report: IO[bytes],
    current: ctypes.Array[ctypes.c_int],
) -> None:
    """Read branches in the child and report the failed ones; never returns."""
    code = 1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.write(report.fileno(), json.dumps(read(positions, ctypes.addressof(current))).encode())
        code = 0
    finally:
        os._exit(code)
