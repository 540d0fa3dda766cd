"""ROOT files and their objects, C++ headers, and messages to the parent process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import ROOT
from treehammer_kit.build_facts import collect_library_facts

#: Number of progress reports.
PROGRESS_STEPS = 100


class RequestError(Exception):
    """Request that cannot be fulfilled, with the file and the reason."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


def exception_text(error: Any) -> str:
    """Extract the message of a C++ exception, without its location in ROOT."""
    return str(error.what()).partition("\n")[0]


def declare_header(header: str) -> None:
    """Compile one of the headers in this module's folder."""
    include = f'#include "{Path(__file__).with_name(header)}"'
    if not ROOT.gInterpreter.Declare(f"#pragma cling optimize(2)\n{include}"):
        raise SystemExit(f"{header} does not compile with this ROOT")


def send_message(channel: TextIO, document: dict[str, Any]) -> None:
    """Write one line; a broken pipe ends this process."""
    channel.write(json.dumps(document) + "\n")
    channel.flush()


def run_with_progress(writer: Any, entries: int, channel: TextIO) -> None:
    """Write or compare all events and report progress."""
    for chunk in range(PROGRESS_STEPS):
        last = entries * (chunk + 1) // PROGRESS_STEPS
        writer.fill(entries * chunk // PROGRESS_STEPS, last)
        send_message(channel, {"done": last})
    writer.close()


def writer_versions() -> dict[str, str]:
    """Return the versions of the software that writes the file."""
    return {
        "root": str(ROOT.gROOT.GetVersion()),
        "zlib": str(collect_library_facts().get("zlib_version", "unknown")),
    }


def open_file(path: str) -> Any:
    """Open a file, which must be complete."""
    try:
        file = ROOT.TFile.Open(path)
    except OSError:
        file = None
    if not file or file.IsZombie():
        raise RequestError(path, "cannot be opened as a ROOT file")
    if file.TestBit(ROOT.TFile.kRecovered):
        raise RequestError(path, "was not closed properly by its writer")
    return file


def list_trees(file: Any) -> dict[str, Any]:
    """Map the path of each tree in a file to the tree."""
    return {
        key: file.Get(key) for key, kind in walk_objects(file, "") if kind.InheritsFrom("TTree")
    }


def list_ntuples(file: Any) -> list[str]:
    """List the paths of the RNTuples, sorted."""
    return sorted(key for key, kind in walk_objects(file, "") if kind.GetName().endswith("RNTuple"))


def find_tree(file: Any, path: str, name: str) -> tuple[str, Any]:
    """Find the named tree, or the largest one, which must not be empty; return its name too."""
    trees, ntuples = list_trees(file), list_ntuples(file)
    if not name:
        name = max(trees, key=lambda key: tree_extent(trees[key]), default="")
    if name not in trees:
        raise RequestError(path, describe_missing_tree(name, sorted(trees), ntuples))
    tree = trees[name]
    if not tree.GetEntries() or not tree.GetNbranches():
        raise RequestError(path, f"the tree {name!r} is empty")
    return name, tree


def walk_objects(folder: Any, prefix: str) -> Iterator[Any]:
    """Iterate over path and class of every object in the file, in its newest cycle."""
    for key in folder.GetListOfKeys():
        kind = ROOT.TClass.GetClass(key.GetClassName())
        path = prefix + key.GetName()
        if not kind:
            continue
        if kind.InheritsFrom("TDirectory"):
            yield from walk_objects(folder.Get(key.GetName()), path + "/")
        else:
            yield path, kind


def tree_extent(tree: Any) -> int:
    """Compute branches times entries, which is small for metadata trees."""
    return int(tree.GetEntries() * tree.GetNbranches())


def describe_missing_tree(name: str, trees: list[str], ntuples: list[str]) -> str:
    """Describe the objects that exist instead of the missing tree."""
    if name in ntuples:
        return f"{name!r} is an RNTuple, and a TTree is wanted"
    if not trees and not ntuples:
        return "no TTree or RNTuple in this file"
    there = ", ".join([*trees, *(f"{ntuple} (RNTuple)" for ntuple in ntuples)])
    return f"has no tree {name!r}; it has {there}" if name else f"main tree unclear: it has {there}"


def list_other_objects(file: Any, name: str) -> list[str]:
    """List the objects of the file other than the tree ``name``."""
    return sorted({key for key, _ in walk_objects(file, "") if key != name})
