"""What writing and reading share: files and what lies in them, C++, and the word to who asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import ROOT
from treehammer_kit.facts import library_facts

#: How often the work is reported.
CHUNKS = 100


class RequestError(Exception):
    """The request cannot be fulfilled: which file, and why."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


def said(error: Any) -> str:
    """What a C++ exception says, without where in ROOT it came from."""
    return str(error.what()).partition("\n")[0]


def declare(header: str) -> None:
    """Compile one of the headers beside this file."""
    include = f'#include "{Path(__file__).with_name(header)}"'
    if not ROOT.gInterpreter.Declare(f"#pragma cling optimize(2)\n{include}"):
        raise SystemExit(f"{header} does not compile with this ROOT")


def send(channel: TextIO, document: dict[str, Any]) -> None:
    """Write one line; when nobody listens any more the broken pipe ends this process."""
    channel.write(json.dumps(document) + "\n")
    channel.flush()


def fill(writer: Any, entries: int, channel: TextIO) -> None:
    """Write (or compare) all events, and say so now and then."""
    for chunk in range(CHUNKS):
        last = entries * (chunk + 1) // CHUNKS
        writer.fill(entries * chunk // CHUNKS, last)
        send(channel, {"done": last})
    writer.close()


def versions() -> dict[str, str]:
    """What has written the file."""
    return {
        "root": str(ROOT.gROOT.GetVersion()),
        "zlib": str(library_facts().get("zlib_version", "unknown")),
    }


def opened(path: str) -> Any:
    """The file, which must be whole."""
    try:
        file = ROOT.TFile.Open(path)
    except OSError:
        file = None
    if not file or file.IsZombie():
        raise RequestError(path, "cannot be opened as a ROOT file")
    if file.TestBit(ROOT.TFile.kRecovered):
        raise RequestError(path, "was not closed properly by its writer")
    return file


def trees_of(file: Any) -> dict[str, Any]:
    """Path -> tree."""
    return {key: file.Get(key) for key, kind in find(file, "") if kind.InheritsFrom("TTree")}


def ntuples_of(file: Any) -> list[str]:
    """Paths of the RNTuples, sorted."""
    return sorted(key for key, kind in find(file, "") if kind.GetName().endswith("RNTuple"))


def tree_of(file: Any, path: str, name: str) -> tuple[str, Any]:
    """Name of the tree asked for, or of the one of greatest extent, and the tree; not an empty one."""
    trees, ntuples = trees_of(file), ntuples_of(file)
    if not name and not ntuples:
        name = max(trees, key=lambda key: extent(trees[key]), default="")
    if name not in trees:
        raise RequestError(path, no_tree(name, sorted(trees), ntuples))
    tree = trees[name]
    if not tree.GetEntries() or not tree.GetNbranches():
        raise RequestError(path, f"the tree {name!r} is empty")
    return name, tree


def find(folder: Any, prefix: str) -> Iterator[Any]:
    """Path and class of every object in the file; of its cycles, only the newest is meant."""
    for key in folder.GetListOfKeys():
        kind = ROOT.TClass.GetClass(key.GetClassName())
        path = prefix + key.GetName()
        if not kind:
            continue
        if kind.InheritsFrom("TDirectory"):
            yield from find(folder.Get(key.GetName()), path + "/")
        else:
            yield path, kind


def extent(tree: Any) -> int:
    """Branches times entries: metadata trees have many of one and few of the other."""
    return int(tree.GetEntries() * tree.GetNbranches())


def no_tree(name: str, trees: list[str], ntuples: list[str]) -> str:
    """Say what is there instead of the tree that was looked for."""
    if name in ntuples:
        return f"{name!r} is an RNTuple, and a TTree is wanted"
    there = ", ".join([*trees, *(f"{ntuple} (RNTuple)" for ntuple in ntuples)]) or "none"
    return f"has no tree {name!r}; it has {there}" if name else f"main tree unclear: it has {there}"


def others(file: Any, name: str) -> list[str]:
    """What lies in the file beside the tree ``name``."""
    return sorted({key for key, _ in find(file, "") if key != name})
