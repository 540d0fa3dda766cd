"""Runs inside ROOT's Python: a bare loop without the kit's reader; prints TFile's counters."""

from __future__ import annotations

import json
import os
import sys

from treehammer_kit import branch_selection, root_engine

BARE_LOOP_SOURCE = """
#pragma cling optimize(2)
namespace bare {
void Loop(TTree &tree)
{
   for (Long64_t entry = 0, end = tree.GetEntries(); entry < end; ++entry)
      tree.GetEntry(entry);
}
}
"""


def main() -> None:
    task = json.loads(sys.argv[1])
    root, _ = root_engine.load_root()
    root_engine.compile_header(root, "kit.hpp")  # only for the survey that a selection needs
    root.gInterpreter.Declare(BARE_LOOP_SOURCE)
    for branches, cache_mb in task["cases"]:
        file = root.TFile.Open(task["url"])
        tree = file.Get("events")
        found = [
            (str(one.name), list(map(str, one.counters))) for one in root.treehammer.Survey(tree)
        ]
        names = [name for name, _ in found]
        chosen = branch_selection.select_branches(
            names, dict(found), branches, seed=task["seed"], folder="."
        )
        tree.SetCacheSize(cache_mb * 1_000_000)
        tree.SetBranchStatus("*", False)
        for position in chosen:
            tree.SetBranchStatus(names[position], True)
        if cache_mb:
            tree.SetCacheEntryRange(0, tree.GetEntries())
            for position in chosen:
                tree.AddBranchToCache(names[position], True)
            tree.StopCacheLearningPhase()
        before = file.GetBytesRead() + file.GetBytesReadExtra(), file.GetReadCalls()
        root.bare.Loop(tree)
        row = {
            "branches": branches,
            "cache_mb": cache_mb,
            "tfile_bytes": file.GetBytesRead() + file.GetBytesReadExtra() - before[0],
            "tfile_calls": file.GetReadCalls() - before[1],
        }
        print(json.dumps(row), flush=True)
        file.Close()
    os._exit(0)


main()
