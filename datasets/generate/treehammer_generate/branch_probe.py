"""Probe of branches: they are read in child processes, which may crash."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple, TextIO

import ROOT
from treehammer_kit import root_engine
from treehammer_kit.extensions import load_library
from treehammer_kit.payload_task import PayloadError

from .root_files import (
    RequestError,
    declare_header,
    exception_text,
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


#: Reads the branches at these positions and writes the current one to an address. Returns the failed
#: ones with their messages, '' where ROOT's output has it.
_ReadBranches = Callable[[Sequence[int], int], dict[int, str]]


def probe_branches(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Read the branches of a TTree or the fields of an RNTuple, and list the file's other trees.

    Unreadable branches come with name, class ('' of plain leaves), ROOT's output and end.
    """
    path, name = request["path"], request["tree"]
    for library in request["libraries"]:
        if problem := load_library(ROOT, library):
            raise RequestError(library, problem)
    file = open_file(path)
    others = sorted({*list_trees(file), *list_ntuples(file)} - {name})
    root_engine.configure_crash_handling()
    if name in list_ntuples(file):
        branches, unreadable = _probe_ntuple(file, name, channel)
    else:
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
    root_engine.compile_kit(ROOT)
    declare_header("probe.hpp")
    entries = int(tree.GetEntries())
    if tree.GetZipBytes() > ALL_ENTRIES_BYTES:
        entries = min(entries, FIRST_ENTRIES)
    tree.SetCacheSize(0)
    # Compiles the call, which each child would do again.
    ROOT.treehammer.ReadBranches(tree, ROOT.std.vector["int"]([0]), 0, 0)

    def read(positions: Sequence[int], address: int) -> dict[int, str]:
        chosen = ROOT.std.vector["int"](positions)
        failed = ROOT.treehammer.ReadBranches(tree, chosen, entries, address)
        return {int(failed): ""} if failed >= 0 else {}

    found: dict[int, _FailedRead] = {}
    for position, branch in enumerate(branches):
        if branch["class"] and not _has_dictionary(branch["class"]):
            found.update(_find_failing_branches(read, [position]))
        send_message(channel, {"done": position + 1})
    return _read_together(read, branches, found)


def _probe_ntuple(
    file: Any, name: str, channel: TextIO
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Read the fields of an RNTuple together; return all of them and the unreadable ones."""
    try:
        root_engine.compile_ntuple_header(ROOT, "ntuple.hpp")
        declare_header("ntuple_probe.hpp")
        listed = ROOT.treehammer.ListFields(file, name)
    except PayloadError as error:
        raise RequestError(file.GetName(), str(error)) from error
    except ROOT.std.exception as error:
        raise RequestError(file.GetName(), exception_text(error)) from error
    fields = [{"name": str(item.first), "class": str(item.second)} for item in listed]

    def read(positions: Sequence[int], address: int) -> dict[int, str]:
        chosen = ROOT.std.vector["int"](positions)
        failed = ROOT.treehammer.ReadFields(file, name, chosen, address)
        return {int(item.first): f"ReadError: {item.second}" for item in failed}

    unreadable = _read_together(read, fields, {})
    send_message(channel, {"done": len(fields)})
    return fields, unreadable


def _read_together(
    read: _ReadBranches, branches: Sequence[dict[str, str]], found: dict[int, _FailedRead]
) -> list[dict[str, str]]:
    """Read all but the failing branches until none fails; return the failing ones."""
    while left := [position for position in range(len(branches)) if position not in found]:
        failed = _find_failing_branches(read, left)
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


def _find_failing_branches(read: _ReadBranches, positions: Sequence[int]) -> dict[int, _FailedRead]:
    """Read these branches in a child; return those at which it failed.

    The child inherits the open tree: opening a file with many classes would take longer than
    reading one branch. This process never reads a branch, so each child begins with sound memory.
    """
    with (
        mmap.mmap(-1, mmap.PAGESIZE) as shared,
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryFile() as report,
    ):
        current = ctypes.c_int.from_buffer(shared)
        current.value = positions[0]
        child = os.fork()
        if not child:
            _read_in_child(read, positions, log, report, current)
        pidfd = os.pidfd_open(child)
        try:
            if not select.select([pidfd], [], [], TIMEOUT_S)[0]:
                os.kill(child, signal.SIGKILL)
        finally:
            os.close(pidfd)
            status = os.waitpid(child, 0)[1]
        last = current.value
        del current  # holds the memory open
        log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
        text = log.read().decode("utf-8", "replace")
        if status:
            return {last: _FailedRead(text, _describe_end(status))}
        report.seek(0)
        return {
            int(position): _FailedRead(message or text, "failed")
            for position, message in json.loads(report.read()).items()
        }


def _describe_end(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return "failed"
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL:
        return f"took longer than {TIMEOUT_S:.0f} s, or was killed"
    return f"was ended by {signal.Signals(number).name}"


def _read_in_child(
    read: _ReadBranches,
    positions: Sequence[int],
    log: IO[bytes],
    report: IO[bytes],
    current: ctypes.c_int,
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
