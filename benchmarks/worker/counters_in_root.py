"""Runs inside ROOT's Python: A/A jobs of the kit's counters; prints a JSON line for each.

Each job is a process that reads the same data twice. All are forks of one that has loaded ROOT.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

from treehammer_kit import root_engine
from treehammer_kit.pass_summary import summarize_tree_passes
from treehammer_kit.payload_task import PayloadTask
from treehammer_kit.read_passes import ReadPasses


def choose_task(url: str, tree: str, cache_mb: int, dice: random.Random) -> PayloadTask:
    """Choose branches and events at random."""
    return PayloadTask(
        kind="timed", tree=tree, urls=[url], adler32s=[""], passes=1, seed=dice.randrange(10**6),
        branches=dice.choice((0.02, 0.05)), cache_bytes=cache_mb * 1_000_000,
        events=dice.choice((0.1, 0.5, 1.0)), settings={}, folder="",
    )  # fmt: skip


def read_twice(root: Any, task: PayloadTask) -> dict[str, Any]:
    """Read the same data twice; return both sides' values."""
    a, b = (summarize_tree_passes([ReadPasses(root, task).run_pass()]) for _ in "ab")
    return {"file_class": a["file_class"], "cache_bytes": task.cache_bytes, "a": a, "b": b}


def main() -> None:
    task = json.loads(sys.argv[1])
    root, _ = root_engine.load_root()
    root_engine.compile_header(root, "kit.hpp")
    # Compiles what the forks would compile each; remote files are first opened by the forks.
    dice = random.Random("warm-up")
    read_twice(root, choose_task(task["urls"][0], task["tree"], 3, dice))
    for number in range(task["jobs"]):
        for url in task["urls"]:
            for cache_mb in task["caches_mb"]:
                child = os.fork()
                if not child:
                    dice = random.Random(f"{number} {cache_mb}")
                    row = read_twice(root, choose_task(url, task["tree"], cache_mb, dice))
                    print(json.dumps(row), flush=True)
                    os._exit(0)
                if os.waitpid(child, 0)[1]:
                    sys.exit(f"job {number} of {url} failed")
    sys.stdout.flush()
    os._exit(0)


main()
