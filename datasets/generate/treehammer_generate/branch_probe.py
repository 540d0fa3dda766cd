"""Probe of branches: they are read in child processes, which may crash."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import tempfile
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, TextIO

import ROOT
from treehammer_kit import root_engine
from treehammer_kit.extensions import load_library

from .root_files import (
    RequestError,
    declare_header,
    find_tree,
    list_ntuples,
    list_trees,
    open_file,
    send_message,
)

#: Compressed bytes of a tree up to which all entries are read; of a larger one the first ones are.
ALL_ENTRIES_BYTES = 100_000_000
FIRST_ENTRIES = 2000
#: Seconds for all entries, after which the branch that is being read counts as unreadable.
TIMEOUT_S = 600.0
#: Bytes at the end of a failed child's output that are kept.
MAX_LOG_BYTES = 200_000


class _FailedRead(NamedTuple):
    """ROOT's output in a child that failed, and how it ended."""

    log: str
    end: str


def probe_branches(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Read the branches of a TTree, and list the file's other trees.

    Unreadable branches come with name, class ('' of plain leaves), ROOT's output and end.
    """
    path, name = request["path"], request["tree"]
    for library in request["libraries"]:
        if problem := load_library(ROOT, library):
            raise RequestError(library, problem)
    file = open_file(path)
    others = sorted({*list_trees(file), *list_ntuples(file)} - {name})
    branches: list[dict[str, str]] = []
    unreadable: list[dict[str, str]] = []
    if name not in list_ntuples(file):
        tree = find_tree(file, path, name)[1]
        branches = _list_branches(tree)
        unreadable = _probe_tree(tree, branches, channel)
    return {
        "root": str(ROOT.gROOT.GetVersion()),
        "unreadable": unreadable,
        "others": others,
        "branches": [branch["name"] for branch in branches],
    }


def _probe_tree(
    tree: Any, branches: Sequence[dict[str, str]], channel: TextIO
) -> list[dict[str, str]]:
    """Read each branch of a class without dictionary alone, then the others, entry by entry.

    A read of such a class may damage the memory and crash later, in another branch's read. Hence it
    is read alone first. The others are read again and again without the one at which ROOT failed.
    """
    root_engine.configure_crash_handling()
    root_engine.compile_kit(ROOT)
    declare_header("probe.hpp")
    entries = int(tree.GetEntries())
    if tree.GetZipBytes() > ALL_ENTRIES_BYTES:
        entries = min(entries, FIRST_ENTRIES)
    tree.SetCacheSize(0)
    # Compiles the call, which each child would do again.
    ROOT.treehammer.ReadBranches(tree, ROOT.std.vector["int"]([0]), 0, 0)
    found: dict[int, _FailedRead] = {}
    for position, branch in enumerate(branches):
        if branch["class"] and not _has_dictionary(branch["class"]):
            found.update(_find_failing_branch(tree, [position], entries))
        send_message(channel, {"done": position + 1})
    while left := [position for position in range(len(branches)) if position not in found]:
        failed = _find_failing_branch(tree, left, entries)
        if not failed:
            break
        found.update(failed)
    return [{**branches[position], **found[position]._asdict()} for position in sorted(found)]


def _list_branches(tree: Any) -> list[dict[str, str]]:
    return [
        {"name": str(branch.GetName()), "class": str(branch.GetClassName())}
        for branch in tree.GetListOfBranches()
    ]


def _has_dictionary(name: str) -> bool:
    known = ROOT.TClass.GetClass(name)
    return bool(known) and bool(known.HasDictionary())


def _find_failing_branch(
    tree: Any, positions: Sequence[int], entries: int
) -> dict[int, _FailedRead]:
    """Read these branches in a child; return the one at which it failed, if any.

    The child inherits the open tree: opening a file with many classes would take longer than
    reading one branch. This process never reads a branch, so each child begins with sound memory.
    """
    with mmap.mmap(-1, mmap.PAGESIZE) as shared, tempfile.TemporaryFile() as log:
        current = ctypes.c_int.from_buffer(shared)
        current.value = positions[0]
        child = os.fork()
        if not child:
            _read_branches(tree, positions, entries, log, current)
        pidfd = os.pidfd_open(child)
        try:
            if not select.select([pidfd], [], [], TIMEOUT_S)[0]:
                os.kill(child, signal.SIGKILL)
        finally:
            os.close(pidfd)
            status = os.waitpid(child, 0)[1]
        failed = current.value
        del current  # holds the memory open
        if not status:
            return {}
        log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        text = log.read().decode("utf-8", "replace")
        return {failed: _FailedRead(text, _describe_end(status))}


def _describe_end(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return "failed"
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL:
        return f"took longer than {TIMEOUT_S:.0f} s, or was killed"
    return f"was ended by {signal.Signals(number).name}"


def _read_branches(
    tree: Any, positions: Sequence[int], entries: int, log: IO[bytes], current: ctypes.c_int
) -> None:
    """Read branches in the child, which exits with 0 if all could be read; never returns."""
    code = 1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        address = ctypes.addressof(current)
        if ROOT.treehammer.ReadBranches(tree, ROOT.std.vector["int"](positions), entries, address):
            code = 0
    finally:
        os._exit(code)
