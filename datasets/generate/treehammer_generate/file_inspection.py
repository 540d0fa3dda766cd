"""Inspection of files: layouts of trees and RNTuples, and checksums of their values."""

from __future__ import annotations

import json
from typing import Any, TextIO

import ROOT
from treehammer_kit import root_engine, value_checksum
from treehammer_kit.payload_task import PayloadError, PayloadTask

from .root_files import (
    RequestError,
    declare_header,
    exception_text,
    find_tree,
    list_ntuples,
    list_trees,
    open_file,
    run_with_progress,
    send_message,
    tree_extent,
    writer_versions,
)

RNTUPLE_FORMAT, TTREE_FORMAT = "rntuple", "ttree"


def hash_values(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Compute value checksums of files leaf by leaf, with the algorithm of the benchmark kit."""
    task = PayloadTask(
        kind="checksum",
        tree=request["tree"],
        urls=request["paths"],
        adler32s=request["adler32s"],
        passes=1,
        seed=1,
        branches=1.0,
        cache_bytes=0,
        events=1.0,
        settings={},
        folder="",
    )
    try:
        root_engine.compile_header(ROOT, "kit.hpp")
        values, lines = value_checksum.compute_value_hashes(ROOT, task)
    except PayloadError as trouble:
        raise RequestError(request["paths"][0], str(trouble)) from trouble
    if not lines:
        raise RequestError(request["paths"][0], f"no leaf of {request['tree']!r} can be hashed")
    return {
        "root": str(ROOT.gROOT.GetVersion()),
        "checksum": values["value_checksum"],
        "lines": lines,
        "uncovered": json.loads(values["checksum_skipped_leaves"]),
    }


def compare_objects(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Compare objects of two files of TTrees, which value checksums do not cover."""
    declare_header("copy.hpp")
    trees = []
    for path in request["paths"]:
        file = open_file(path)
        trees.append((file, find_tree(file, path, request["tree"])[1]))
    covered = ROOT.std.set["std::string"](request["covered"])
    try:
        comparer = ROOT.treehammer.Comparer(trees[0][1], trees[1][1], covered)
        run_with_progress(comparer, int(trees[0][1].GetEntries()), channel)
    except ROOT.std.exception as error:
        raise RequestError(request["paths"][1], exception_text(error)) from error
    differing = [str(name) for name in comparer.differing]
    return {**writer_versions(), "compared": int(comparer.compared()), "differing": differing}


def measure_files(request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """Measure the main tree or RNTuple of every file; its name is the same in all files."""
    layouts: list[dict[str, Any]] = []
    tree = request["tree"] or find_largest(request["paths"][0])
    for done, path in enumerate(request["paths"], 1):
        layouts.append(measure_file(path, tree))
        send_message(channel, {"done": done})
    return {"root": str(ROOT.gROOT.GetVersion()), "layouts": layouts}


def find_largest(path: str) -> str:
    """Find the tree or RNTuple of most entries times branches, then bytes; '' where there is none."""
    file = open_file(path)
    extents = {
        name: (tree_extent(tree), int(tree.GetZipBytes()))
        for name, tree in list_trees(file).items()
    }
    for name in list_ntuples(file):
        layout = read_ntuple_layout(path, name)
        extents[name] = (layout["entries"] * len(layout["zipped"]), sum(layout["zipped"]))
    return max(sorted(extents), key=lambda name: extents[name], default="")


def measure_file(path: str, name: str) -> dict[str, Any]:
    """Measure the layout of the tree or RNTuple ``name``."""
    file = open_file(path)
    if name in list_ntuples(file):
        return measure_ntuple(path, name)
    declare_header("layout.hpp")
    name, tree = find_tree(file, path, name)
    folder, _, key_name = name.rpartition("/")
    record = (file.Get(folder) if folder else file).GetKey(key_name)
    return {
        "tree": name,
        "format": TTREE_FORMAT,
        "record_zipped": int(record.GetNbytes()),
        "record_unzipped": int(record.GetObjlen()),
        **layout_to_json(ROOT.treehammer.measure(tree)),
    }


def measure_ntuple(path: str, name: str) -> dict[str, Any]:
    """Measure the layout of the RNTuple ``name``."""
    layout = read_ntuple_layout(path, name)
    if not layout["entries"] or not layout["zipped"]:
        raise RequestError(path, f"the RNTuple {name!r} is empty")
    # The record of its name holds no data.
    return {
        "tree": name,
        "format": RNTUPLE_FORMAT,
        "record_zipped": 0,
        "record_unzipped": 1,
        **layout,
    }


def read_ntuple_layout(path: str, name: str) -> dict[str, Any]:
    """Read the layout of the RNTuple ``name``."""
    try:
        root_engine.compile_ntuple_header(ROOT, "ntuple.hpp")
    except PayloadError as trouble:
        raise RequestError(path, str(trouble)) from trouble
    declare_header("ntuple_layout.hpp")
    try:
        return layout_to_json(ROOT.treehammer.measureNTuple(name, path))
    except ROOT.std.exception as error:
        raise RequestError(path, exception_text(error)) from error


def layout_to_json(layout: Any) -> dict[str, Any]:
    """Convert a C++ layout to JSON values."""
    lists = (
        "unzipped",
        "zipped",
        "embedded",
        "baskets",
        "clusters",
        "embeddedBaskets",
        "embeddedClusters",
    )
    return {
        "entries": int(layout.entries),
        **{name: [int(value) for value in getattr(layout, name)] for name in lists},
        "sorted": [
            name for name, kept in (("entry", layout.byEntry), ("branch", layout.byBranch)) if kept
        ],
        "mean_jump": float(layout.meanJump),
    }
