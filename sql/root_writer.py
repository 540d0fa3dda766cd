"""Writes a TTree from an Arrow stream on standard input: ``python -m … FILE``.

A process of its own, because ROOT comes from another environment than Treehammer and belongs
to no long-lived process.  What the tree is called and says of itself travels in the schema's
metadata, written by :mod:`treehammer.sql.root_export`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import ROOT

HEADER = Path(__file__).with_name("results_tree.hpp")


def main(target: str) -> None:
    """Write the stream to ``target``; leave with a message when that fails."""
    ROOT.gROOT.SetBatch(True)
    # Everything up to here is loaded; from here errors are ours to report.
    ROOT.gInterpreter.Declare(HEADER.read_text(encoding="utf-8"))
    stream = pa.ipc.open_stream(sys.stdin.buffer)
    about = {key.decode(): value.decode() for key, value in stream.schema.metadata.items()}
    name = about.pop("tree_name")
    file = ROOT.TFile.Open(target, "RECREATE")
    if not file:
        sys.exit(f"cannot make {target}")
    tree = ROOT.TTree(name, about.pop("tree_title"))
    for key, text in about.items():
        note = ROOT.TNamed(key, text)
        ROOT.SetOwnership(note, False)
        tree.GetUserInfo().Add(note)
    rows = _fill(tree, stream)
    tree.Write("", ROOT.TObject.kOverwrite)
    broken = file.TestBit(ROOT.TFile.kWriteError)
    file.Close()
    if broken or _entries(target, name) != rows:
        sys.exit("the file could not be written in full: is the disk full?")


def _fill(tree: Any, stream: pa.RecordBatchReader) -> int:
    filler = ROOT.treehammer.TreeFiller(tree)
    for field in stream.schema:
        text = {key.decode(): value.decode() for key, value in field.metadata.items()}
        filler.addColumn(field.name, text["kind"], text["title"])
    rows = 0
    for batch in stream:
        for place, column in enumerate(batch.columns):
            filler.setInput(place, *_addresses(column))
        filler.fill(batch.num_rows)
        rows += batch.num_rows
    return rows


def _addresses(column: pa.Array) -> tuple[int, int, int, int, int]:
    """Addresses of validity, offsets and data; rows and items to skip (Arrow's columnar layout)."""
    buffers = [0 if buffer is None else buffer.address for buffer in column.buffers()]
    if pa.types.is_list(column.type):
        items = column.values
        data = items.buffers()[1]
        return buffers[0], buffers[1], data.address if data else 0, column.offset, items.offset
    if pa.types.is_string(column.type):
        return buffers[0], buffers[1], buffers[2], column.offset, 0
    return buffers[0], 0, buffers[1], column.offset, 0


def _entries(path: str, name: str) -> int:
    file = ROOT.TFile.Open(path)
    if not file or file.TestBit(ROOT.TFile.kRecovered):
        return -1
    tree = file.Get(name)
    entries = int(tree.GetEntries()) if tree else -1
    file.Close()
    return entries


if __name__ == "__main__":
    main(sys.argv[1])
