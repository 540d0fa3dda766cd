"""Writes a TTree from each Arrow stream on standard input: ``python root_writer.py``.

A process of its own, because ROOT comes from another environment than Treehammer and belongs
to no long-lived process.  The name and title of a tree and the file that it belongs to
are in its schema's metadata, written by :mod:`treehammer.sql.transfer.file_writers`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import ROOT

HEADER = Path(__file__).with_name("results_tree.hpp")


def main() -> None:
    """Write each stream as a tree; leave with a message when that fails."""
    ROOT.gROOT.SetBatch(True)
    # Everything up to here is loaded; from here errors are ours to report.
    ROOT.gInterpreter.Declare(HEADER.read_text(encoding="utf-8"))
    streams = cast(io.BufferedReader, sys.stdin.buffer)
    file: _RootFile | None = None
    while streams.peek(1):
        stream = pa.ipc.open_stream(streams)
        about = {key.decode(): value.decode() for key, value in stream.schema.metadata.items()}
        target = about.pop("tree_file")
        if file is None or file.target != target:
            if file:
                file.close()
            file = _RootFile(target)
        file.write_tree(stream, about)
    if file:
        file.close()


class _RootFile:
    """A ROOT file that is being written."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._file = ROOT.TFile.Open(target, "RECREATE")
        if not self._file:
            sys.exit(f"cannot make {target}")
        self._rows: dict[str, int] = {}

    def write_tree(self, stream: pa.RecordBatchReader, about: dict[str, str]) -> None:
        name, looks_unknown = about.pop("tree_name"), about.pop("looks_unknown")
        tree = ROOT.TTree(name, about.pop("tree_title"))
        for key, text in about.items():
            note = ROOT.TNamed(key, text)
            ROOT.SetOwnership(note, False)
            tree.GetUserInfo().Add(note)
        self._rows[name] = _fill_tree(tree, stream, looks_unknown)
        tree.Write("", ROOT.TObject.kOverwrite)

    def close(self) -> None:
        broken = self._file.TestBit(ROOT.TFile.kWriteError)
        self._file.Close()
        if broken or _count_entries(self.target, self._rows) != self._rows:
            sys.exit("the file could not be written in full: is the disk full?")


def _fill_tree(tree: Any, stream: pa.RecordBatchReader, looks_unknown: str) -> int:
    filler = ROOT.treehammer.TreeFiller(tree)
    for field in stream.schema:
        text = {key.decode(): value.decode() for key, value in field.metadata.items()}
        filler.addColumn(field.name, text["kind"], text["title"])
    title = "Columns of this row, by commas, that are known although they look unknown."
    filler.addLookingUnknown(looks_unknown, title)
    rows = 0
    for batch in stream:
        for place, column in enumerate(batch.columns):
            filler.setInput(place, *_buffer_addresses(column))
        filler.fill(batch.num_rows)
        rows += batch.num_rows
    return rows


def _buffer_addresses(column: pa.Array) -> tuple[int, int, int, int, int]:
    """Return addresses of validity, offsets and data; rows and items to skip (Arrow's layout)."""
    buffers = [0 if buffer is None else buffer.address for buffer in column.buffers()]
    if pa.types.is_list(column.type):
        items = column.values
        data = items.buffers()[1]
        return buffers[0], buffers[1], data.address if data else 0, column.offset, items.offset
    if pa.types.is_string(column.type):
        return buffers[0], buffers[1], buffers[2], column.offset, 0
    return buffers[0], 0, buffers[1], column.offset, 0


def _count_entries(path: str, names: Iterable[str]) -> dict[str, int]:
    file = ROOT.TFile.Open(path)
    if not file or file.TestBit(ROOT.TFile.kRecovered):
        return {}
    trees = {name: file.Get(name) for name in names}
    counts = {name: int(tree.GetEntries()) for name, tree in trees.items() if tree}
    file.Close()
    return counts


if __name__ == "__main__":
    main()
