"""Prints an export as read by TTree::Draw and RDataFrame; run by a ROOT release's Python.

RDataFrame reads a few columns of each type: ROOT compiles code for each of them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import ROOT


def drawn(tree: Any, name: str, condition: str = "") -> list[float]:
    count = tree.Draw(name, condition, "goff")
    return [tree.GetV1()[i] for i in range(count)]


def drawn_rows(operations: Any) -> list[list[float]]:
    count = operations.Draw("p99_s:max_s:step", 'operation == "open" && done > 0', "goff")
    columns = operations.GetV1(), operations.GetV2(), operations.GetV3()
    return [[column[i] for column in columns] for i in range(count)]


def main(path: str) -> None:
    file = ROOT.TFile.Open(path)
    tree = file.Get("results")
    frame = ROOT.RDataFrame("results", path)
    names = [str(name) for name in frame.GetColumnNames()]
    types = {name: str(frame.GetColumnType(name)) for name in names}
    numbers = [name for name in names if types[name] != "string"]
    of_type: dict[str, list[str]] = {}
    for name in names:
        of_type.setdefault(types[name], []).append(name)
    columns = frame.AsNumpy([name for group in of_type.values() for name in group[:4]])
    print(
        json.dumps(
            {
                "about": {note.GetName(): note.GetTitle() for note in tree.GetUserInfo()},
                "title": tree.GetTitle(),
                "meaning": {name: tree.GetBranch(name).GetTitle() for name in names},
                "types": types,
                "drawn": {name: drawn(tree, name) for name in numbers},
                "drawn_where": drawn(tree, "position", 'job_id=="text" && round==1'),
                "opens": drawn_rows(file.Get("op")),
                "filtered": frame.Filter('job_id == "text" && round == 1 && plausible == 1')
                .Count()
                .GetValue(),
                "frame": {name: list(map(plain, column)) for name, column in columns.items()},
            }
        )
    )


def plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (int, float, str)):
        return value
    return str(value) if isinstance(value, ROOT.std.string) else [plain(item) for item in value]


main(sys.argv[1])
