#!/usr/bin/env python3
"""Read the first events of some branches with uproot, one after the other."""

import json
import os
import time
from pathlib import Path

import uproot

settings = json.loads(Path(os.environ["TREEHAMMER_JOB"]).read_text())["settings"]
times = []
for _ in range(settings["passes"]):
    with uproot.open(os.environ["TREEHAMMER_URL"]) as file:
        tree = file[os.environ["TREEHAMMER_TREE"]]
        branches = tree.branches[: settings["branches"]]
        start = time.monotonic()
        for branch in branches:
            branch.array(entry_stop=10, library="np")
        times.append((time.monotonic() - start) / len(branches))
print("uproot", uproot.__version__, type(file.file.source).__name__, times)
result = {"format": 1, "values": {}, "extras": {"branch_wall_s": min(times)}, "failure": None}
Path(os.environ["TREEHAMMER_RESULT"]).write_text(json.dumps(result))
