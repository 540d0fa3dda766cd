"""Runs under the Python of a ROOT environment: ``in_root.py make``, ``merge`` or ``measure``.

The request is one JSON document on standard input.  Standard output carries one JSON document
a line: ``{"done": n}`` while it goes on, then ``{"result": ...}`` or ``{"error": {"where",
"message"}}``.  What ROOT itself prints goes to standard error.  Python 3.9 and later.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import ROOT
from treehammer_kit.facts import library_facts

#: The release named in the header of every file made here.  The header is the only place where
#: 6.37 to 6.40 differ; naming one of them keeps the bytes, and so the checksums, the same.
CANONICAL_VERSION = 63800
#: Added to the version in the header of files above 2 GB.
BIG_FILE = 1_000_000
CHUNKS = 100
#: Events of a source that are written and compared before it is merged.
TRIAL_ENTRIES = 1000


class RequestError(Exception):
    """The request cannot be fulfilled: which file, and why."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


def make(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Write the tree that ``request`` describes (made by ``spec.write``)."""
    path = request["path"]
    # Without this name ROOT puts the time, a random UUID and the path into the file.
    url = f"{path}?reproducible={request['file_name']}"
    try:
        writer = ROOT.treehammer.TreeWriter(
            url, request["tree"], request["compression"], request["events_per_cluster"]
        )
        for item in request["collections"]:
            writer.collection(item["counter"], item["seed"], item["mean"])
        for item in request["branches"]:
            writer.branch(
                item["name"],
                item["type"],
                item["vector"],
                item["length"],
                item["counter"],
                item["seed"],
                item["bits"],
                item["zeros"],
                item["hold"],
            )
        fill(writer, request["entries"], channel)
    except ROOT.std.exception as error:
        raise RequestError(path, str(error.what())) from error
    canonise(Path(path))
    return versions()


def merge(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Rewrite the events of a tree as ``request`` asks for (made by ``merged.write``)."""
    path, where = request["path"], request["source"]
    source = opened(where)
    name, tree = tree_of(source, where, request["tree"])
    entries = int(tree.GetEntries())
    found = (entries, int(tree.GetNbranches()))
    if found != (request["entries"], request["branches"]):
        raise RequestError(
            where, f"has {found[0]} entries x {found[1]} branches, not as its spec says"
        )
    others = sorted(key for key, _ in find(source, "") if key != name)
    try:
        merger = ROOT.treehammer.Merger(tree, request["seed"])
        left_out = [str(name) for name in merger.leaveOut(min(entries, TRIAL_ENTRIES))]
        leaves = merger.learn(request["kept_bits"])
        merger.open(
            f"{path}?reproducible={request['file_name']}",
            request["compression"],
            request["events_per_cluster"],
            request["basket_memory"],
        )
        fill(merger, request["copies"] * entries, channel)
    except ROOT.std.exception as error:
        raise RequestError(path, str(error.what())) from error
    canonise(Path(path))
    kinds = ("perturbed", "exact", "integer", "object")
    return {
        **versions(),
        "copies": request["copies"],
        "kept_bits": request["kept_bits"],
        "leaves": {kind: int(getattr(leaves, kind)) for kind in kinds},
        "branches_left_out": left_out,
        "objects_left_out": others,
    }


def fill(writer: Any, entries: int, channel: TextIO) -> None:
    """Write all events, and say so now and then."""
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


def canonise(path: Path) -> None:
    """Name the same release in the header of the file, whichever wrote it."""
    with path.open("r+b") as file:
        magic, version = struct.unpack(">4sI", file.read(8))
        if magic != b"root":
            raise RequestError(str(path), "is not a ROOT file after writing")
        big = BIG_FILE if version >= BIG_FILE else 0
        file.seek(4)
        file.write(struct.pack(">I", CANONICAL_VERSION + big))


def measure(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Measure the main tree of every file; it has the same name in all of them."""
    layouts: list[dict[str, Any]] = []
    tree = request["tree"]
    for done, path in enumerate(request["paths"], 1):
        layouts.append(measure_file(path, tree))
        tree = layouts[0]["tree"]
        send(channel, {"done": done})
    return {"root": str(ROOT.gROOT.GetVersion()), "layouts": layouts}


def measure_file(path: str, name: str) -> dict[str, Any]:
    """Sizes of everything in the tree ``name``; if that is empty, in the tree of greatest extent."""
    file = opened(path)
    name, tree = tree_of(file, path, name)
    folder, _, key_name = name.rpartition("/")
    record = (file.Get(folder) if folder else file).GetKey(key_name)
    layout = ROOT.treehammer.measure(tree)
    sizes = ("unzipped", "zipped", "embedded", "baskets", "clusters")
    return {
        "tree": name,
        "entries": int(tree.GetEntries()),
        "record_zipped": int(record.GetNbytes()),
        "record_unzipped": int(record.GetObjlen()),
        **{size: [int(value) for value in getattr(layout, size)] for size in sizes},
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


def tree_of(file: Any, path: str, name: str) -> tuple[str, Any]:
    """Name of the tree asked for, or of the one of greatest extent, and the tree; not an empty one."""
    classes = dict(find(file, ""))
    trees = {key: file.Get(key) for key, kind in classes.items() if kind.InheritsFrom("TTree")}
    ntuples = sorted(key for key, kind in classes.items() if kind.GetName().endswith("RNTuple"))
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
        return f"{name!r} is an RNTuple; datasets are made of TTrees"
    there = ", ".join([*trees, *(f"{ntuple} (RNTuple)" for ntuple in ntuples)]) or "none"
    return f"has no tree {name!r}; it has {there}" if name else f"main tree unclear: it has {there}"


def send(channel: TextIO, document: dict[str, Any]) -> None:
    """Write one line; when nobody listens any more the broken pipe ends this process."""
    channel.write(json.dumps(document) + "\n")
    channel.flush()


def main() -> None:
    """Answer one request."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    action, header = {
        "make": (make, "tree.hpp"),
        "merge": (merge, "merge.hpp"),
        "measure": (measure, "tree.hpp"),
    }[sys.argv[1]]
    request = json.load(sys.stdin)
    ROOT.gROOT.SetBatch(True)
    include = f'#include "{Path(__file__).with_name(header)}"'
    if not ROOT.gInterpreter.Declare(f"#pragma cling optimize(2)\n{include}"):
        raise SystemExit(f"{header} does not compile with this ROOT")
    try:
        answer = {"result": action(request, channel)}
    except RequestError as error:
        answer = {"error": {"where": error.where, "message": str(error)}}
    send(channel, answer)


if __name__ == "__main__":
    main()
