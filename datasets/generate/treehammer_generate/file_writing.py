"""Writing of files: generated, merged, and rewritten with another layout."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, TextIO

import ROOT
from treehammer_kit import root_engine
from treehammer_kit.payload_task import PayloadError, make_plain_url

from .file_inspection import (
    RequestError,
    declare_header,
    explain_exceptions,
    find_tree,
    list_other_objects,
    open_file,
    run_with_progress,
    writer_versions,
)

#: Release in the header of every file made here.  Files of 6.37 to 6.40 differ only in the
#: header; a constant release keeps their bytes and checksums equal.
CANONICAL_VERSION = 63800
#: Added to the version in the header of files above 2 GB.
BIG_FILE_OFFSET = 1_000_000
#: Events of a source written and compared as a trial before merging or rewriting it.
TRIAL_ENTRIES = {"merge": 1000, "rewrite": 100}
#: Maximum number of branches listed in a message.
MAX_NAMED_BRANCHES = 5


def write_generated(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Write the tree of a request from ``spec.write``."""
    declare_header("tree.hpp")
    path = request["path"]
    # Without this name ROOT writes the time, a random UUID and the path into the file.
    url = f"{make_plain_url(path)}?reproducible={request['file_name']}"
    with explain_exceptions(path):
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
        run_with_progress(writer, request["entries"], channel)
    set_canonical_version(Path(path))
    return writer_versions()


def write_merged(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Merge copies of a tree's events as in a request from ``merged.write``."""
    declare_header("merge.hpp")
    path, where = request["path"], request["source"]
    source = open_file(where, channel, request["tree"])
    item, tree = find_tree(source, where, request["tree"])
    entries = int(tree.GetEntries())
    dimensions = (entries, int(tree.GetNbranches()))
    if dimensions != (request["entries"], request["branches"]):
        raise RequestError(
            where, f"has {dimensions[0]} entries x {dimensions[1]} branches, not as its spec says"
        )
    with explain_exceptions(path):
        merger = ROOT.treehammer.Merger(tree, request["seed"])
        left_out = [str(name) for name in merger.leaveOut(min(entries, TRIAL_ENTRIES["merge"]))]
        leaves = merger.learn(request["kept_bits"])
        merger.open(
            f"{make_plain_url(path)}?reproducible={request['file_name']}",
            request["compression"],
            request["events_per_cluster"],
            request["basket_memory"],
        )
        run_with_progress(merger, request["copies"] * entries, channel)
    set_canonical_version(Path(path))
    kinds = ("perturbed", "exact", "integer", "object")
    return {
        **writer_versions(),
        "copies": request["copies"],
        "kept_bits": request["kept_bits"],
        "leaves": {kind: int(getattr(leaves, kind)) for kind in kinds},
        "branches_left_out": left_out,
        "objects_left_out": list_other_objects(source, item.path),
    }


def set_canonical_version(path: Path) -> None:
    """Set the release in the file's header to the canonical one."""
    with path.open("r+b") as file:
        magic, version = struct.unpack(">4sI", file.read(8))
        if magic != b"root":
            raise RequestError(str(path), "is not a ROOT file after writing")
        big = BIG_FILE_OFFSET if version >= BIG_FILE_OFFSET else 0
        file.seek(4)
        file.write(struct.pack(">I", CANONICAL_VERSION + big))


def write_rewritten(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Write the events of a tree with another layout, as in a request from ``rewritten.write``."""
    declare_header("rewrite.hpp")
    path, where = request["path"], request["source"]
    source = open_file(where, channel, request["tree"])
    item, tree = find_tree(source, where, request["tree"])
    layout = ROOT.treehammer.NewLayout()
    for key in ("compression", "autoFlush", "basketSize", "basketMemory", "acrossClusters"):
        setattr(layout, key, request[key])
    entries = int(tree.GetEntries())
    with explain_exceptions(path):
        rewriter = ROOT.treehammer.Rewriter(tree)
        trial = rewriter.leaveOut(min(entries, TRIAL_ENTRIES["rewrite"]))
        left_out = {str(name): "does not come back as it was read" for name in trial}
        check_left_out(left_out, request["skip_unwritable"], where)
        rewriter.open(
            f"{make_plain_url(path)}?reproducible={request['file_name']}", item.folder, layout
        )
        run_with_progress(rewriter, entries, channel)
    return {
        **writer_versions(),
        "left_out": left_out,
        "others": list_other_objects(source, item.path),
    }


def write_reordered(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Copy the baskets of a tree in another order, as in a request from ``rewritten.write``."""
    declare_header("rewrite.hpp")
    path, where = request["path"], request["source"]
    source = open_file(where, channel, request["tree"])
    item, tree = find_tree(source, where, request["tree"])
    url = f"{make_plain_url(path)}?reproducible={request['file_name']}"
    with explain_exceptions(path):
        ROOT.treehammer.writeInOrder(tree, url, item.folder, request["method"])
    return {**writer_versions(), "left_out": {}, "others": list_other_objects(source, item.path)}


def write_rntuple(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Write the events of a tree as an RNTuple, as in a request from ``rewritten.write``."""
    path, where = request["path"], request["source"]
    try:
        root_engine.compile_ntuple_header(ROOT, "ntuple.hpp")
    except PayloadError as trouble:
        raise RequestError(where, str(trouble)) from trouble
    declare_header("twin.hpp")
    source = open_file(where, channel, request["tree"])
    item, tree = find_tree(source, where, request["tree"])
    left_out = {str(item.first): str(item.second) for item in ROOT.treehammer.notForTwin(tree)}
    check_left_out(left_out, request["skip_unwritable"], where)
    for branch in left_out:
        ROOT.treehammer.takeOut(tree, branch)
    compression = request["compression"]
    if compression < 0:
        compression = source.GetCompressionSettings()
    channel.flush()
    with explain_exceptions(path):
        ROOT.treehammer.writeTwin(
            tree,
            f"{make_plain_url(path)}?reproducible={request['file_name']}",
            item.path,
            compression,
            request["clusterBytes"],
            channel.fileno(),
        )
    reset_record_dates(Path(path))
    return {
        **writer_versions(),
        "left_out": left_out,
        "others": list_other_objects(source, item.path),
    }


def check_left_out(left_out: dict[str, str], allowed: bool, where: str) -> None:
    """Refuse to leave out branches unless the request allows it."""
    if left_out and not allowed:
        lines = [f"\n  {name}: {reason}" for name, reason in left_out.items()]
        if len(lines) > MAX_NAMED_BRANCHES:
            lines[MAX_NAMED_BRANCHES:] = [f"\n  and {len(lines) - MAX_NAMED_BRANCHES} more"]
        text = f"{len(left_out)} branches cannot be written:{''.join(lines)}"
        raise RequestError(where, text)


def reset_record_dates(path: Path) -> None:
    """Reset records that ROOT dated despite a reproducible file to its fixed date.

    A record begins with its length (4 bytes), version (2), uncompressed length (4) and date (4);
    the first record, that of the file itself, has the fixed date.
    """
    with path.open("r+b") as file:
        _, version, position = struct.unpack(">4sII", file.read(12))
        size, form = (8, ">Q") if version >= BIG_FILE_OFFSET else (4, ">I")
        (end,) = struct.unpack(form, file.read(size))
        file.seek(position + 10)
        fixed = file.read(4)
        while position < end:
            file.seek(position)
            (length,) = struct.unpack(">i", file.read(4))
            if length > 0:
                file.seek(position + 10)
                file.write(fixed)
            position += abs(length)
