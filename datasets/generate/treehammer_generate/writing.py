"""Writes files: generated ones, merged ones, and the same events with another layout."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, TextIO

import ROOT
from treehammer_kit import engine
from treehammer_kit.task import Trouble

from .common import RequestError, declare, fill, opened, others, said, tree_of, versions

#: The release named in the header of every file made here.  The header is the only place where
#: 6.37 to 6.40 differ; naming one of them keeps the bytes, and so the checksums, the same.
CANONICAL_VERSION = 63800
#: Added to the version in the header of files above 2 GB.
BIG_FILE = 1_000_000
#: Events of a source that are written and compared before it is merged or rewritten.
TRIAL_ENTRIES = {"merge": 1000, "rewrite": 100}
#: Branches that a message names.
SHOWN = 5


def make(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Write the tree that ``request`` describes (made by ``spec.write``)."""
    declare("tree.hpp")
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
        raise RequestError(path, said(error)) from error
    canonise(Path(path))
    return versions()


def merge(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Rewrite the events of a tree as ``request`` asks for (made by ``merged.write``)."""
    declare("merge.hpp")
    path, where = request["path"], request["source"]
    source = opened(where)
    name, tree = tree_of(source, where, request["tree"])
    entries = int(tree.GetEntries())
    found = (entries, int(tree.GetNbranches()))
    if found != (request["entries"], request["branches"]):
        raise RequestError(
            where, f"has {found[0]} entries x {found[1]} branches, not as its spec says"
        )
    try:
        merger = ROOT.treehammer.Merger(tree, request["seed"])
        left_out = [str(name) for name in merger.leaveOut(min(entries, TRIAL_ENTRIES["merge"]))]
        leaves = merger.learn(request["kept_bits"])
        merger.open(
            f"{path}?reproducible={request['file_name']}",
            request["compression"],
            request["events_per_cluster"],
            request["basket_memory"],
        )
        fill(merger, request["copies"] * entries, channel)
    except ROOT.std.exception as error:
        raise RequestError(path, said(error)) from error
    canonise(Path(path))
    kinds = ("perturbed", "exact", "integer", "object")
    return {
        **versions(),
        "copies": request["copies"],
        "kept_bits": request["kept_bits"],
        "leaves": {kind: int(getattr(leaves, kind)) for kind in kinds},
        "branches_left_out": left_out,
        "objects_left_out": others(source, name),
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


def rewrite(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Write the events of a tree with another layout (made by ``rewritten.write``)."""
    declare("rewrite.hpp")
    path, where = request["path"], request["source"]
    source = opened(where)
    name, tree = tree_of(source, where, request["tree"])
    folder = name.rpartition("/")[0]
    wish = ROOT.treehammer.Wish()
    for key in ("compression", "autoFlush", "basketSize", "basketMemory"):
        setattr(wish, key, request[key])
    entries = int(tree.GetEntries())
    try:
        rewriter = ROOT.treehammer.Rewriter(tree)
        trial = rewriter.leaveOut(min(entries, TRIAL_ENTRIES["rewrite"]))
        left_out = {str(name): "does not come back as it was read" for name in trial}
        refuse(left_out, request["leave_out"], where)
        rewriter.open(f"{path}?reproducible={request['file_name']}", folder, wish)
        fill(rewriter, entries, channel)
    except ROOT.std.exception as error:
        raise RequestError(path, said(error)) from error
    return {**versions(), "left_out": left_out, "others": others(source, name)}


def order(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Copy the baskets of a tree in another order (made by ``rewritten.write``)."""
    declare("rewrite.hpp")
    path, where = request["path"], request["source"]
    source = opened(where)
    name, tree = tree_of(source, where, request["tree"])
    url = f"{path}?reproducible={request['file_name']}"
    try:
        ROOT.treehammer.writeInOrder(tree, url, name.rpartition("/")[0], request["method"])
    except ROOT.std.exception as error:
        raise RequestError(path, said(error)) from error
    return {**versions(), "left_out": {}, "others": others(source, name)}


def twin(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Write the events of a tree as an RNTuple (made by ``rewritten.write``)."""
    path, where = request["path"], request["source"]
    try:
        engine.declare_ntuple(ROOT, "ntuple.hpp")
    except Trouble as trouble:
        raise RequestError(where, str(trouble)) from trouble
    declare("twin.hpp")
    source = opened(where)
    name, tree = tree_of(source, where, request["tree"])
    left_out = {str(item.first): str(item.second) for item in ROOT.treehammer.notForTwin(tree)}
    refuse(left_out, request["leave_out"], where)
    for branch in left_out:
        ROOT.treehammer.takeOut(tree, branch)
    compression = request["compression"]
    if compression < 0:
        compression = source.GetCompressionSettings()
    channel.flush()
    try:
        ROOT.treehammer.writeTwin(
            tree,
            f"{path}?reproducible={request['file_name']}",
            name,
            compression,
            request["clusterBytes"],
            channel.fileno(),
        )
    except ROOT.std.exception as error:
        raise RequestError(path, said(error)) from error
    forget_times(Path(path))
    return {**versions(), "left_out": left_out, "others": others(source, name)}


def refuse(left_out: dict[str, str], allowed: bool, where: str) -> None:
    """Refuse to leave branches out, unless that is asked for."""
    if left_out and not allowed:
        names = "".join(f"\n  {name}: {reason}" for name, reason in list(left_out.items())[:SHOWN])
        more = f"\n  and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else ""
        raise RequestError(where, f"{len(left_out)} branches cannot be written:{names}{more}")


def forget_times(path: Path) -> None:
    """Give the records that ROOT has dated, although it was to make a reproducible file, its fixed date.

    A record begins with its length (4 bytes), version (2), uncompressed length (4) and date (4); the
    first, the file's own, has the fixed date.
    """
    with path.open("r+b") as file:
        _, version, position = struct.unpack(">4sII", file.read(12))
        (end,) = (
            struct.unpack(">Q", file.read(8))
            if version >= BIG_FILE
            else struct.unpack(">I", file.read(4))
        )
        file.seek(position + 10)
        fixed = file.read(4)
        while position < end:
            file.seek(position)
            (length,) = struct.unpack(">i", file.read(4))
            if length > 0:
                file.seek(position + 10)
                file.write(fixed)
            position += abs(length)
