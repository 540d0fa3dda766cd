"""Runs inside ROOT's Python: loops with and without the kit, alternated; prints JSON lines."""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from treehammer_kit import root_engine
from treehammer_kit.pass_summary import summarize_tree_passes
from treehammer_kit.read_passes import ReadPasses, get_tree, open_file, raise_on_failure

BARE_LOOP_FILE = Path(__file__).with_name("bare_loop.hpp")

CpuAndWall = tuple[float, float]


def time_call(run: Any) -> CpuAndWall:
    """Return CPU and wall seconds of a call: its loop and, with the kit, all accounting."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    run()
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall


def run_with_kit(root: Any, url: str, tree: str, cache: int, events: int) -> tuple[CpuAndWall, int]:
    reader = open_file(root, url)
    get_tree(reader, url, tree)
    reader.ChooseEvents(reader.entries_total, 1.0, 1)
    reader.current.entries = root.treehammer.Entries(events)
    raise_on_failure(reader, reader.Prepare(cache, True, []), "prepare", url)
    account = time_call(reader.Run)
    reader.Close()
    return account, int(reader.current.bytes)


def run_bare_loop(
    root: Any, url: str, tree: str, cache: int, events: int
) -> tuple[CpuAndWall, int]:
    reader = root.bare.Reader()
    reader.Prepare(url, tree, cache)
    account = time_call(lambda: reader.Run(events))
    reader.Close()
    return account, int(reader.bytes)


def main() -> None:
    task = json.loads(sys.argv[1])
    root, _ = root_engine.load_root()
    root_engine.compile_kit(root)
    format_ = root_engine.FormatReader(
        ReadPasses, summarize_tree_passes, "WriteWarmUpFile", "TheLoop", "Pass"
    )
    code = "void read(treehammer::Pass &p) { treehammer::ReadAll(p); }"
    root_engine.compile_loop(root, code, "read", format_)
    root.gInterpreter.Declare(BARE_LOOP_FILE.read_text(encoding="utf-8"))
    arms = {"kit": run_with_kit, "bare": run_bare_loop, "bare again": run_bare_loop}
    orders = list(itertools.permutations(arms))
    for cache_mb in task["caches_mb"]:
        for number in range(-1, task["rounds"]):
            for arm in orders[number % len(orders)]:
                cache = cache_mb * 1_000_000
                account, read = arms[arm](root, task["url"], task["tree"], cache, task["events"])
                if number < 0:
                    continue  # warms up
                row = {"cache_mb": cache_mb, "round": number, "arm": arm, "unzipped_bytes": read}
                row.update(cpu_s=account[0], wall_s=account[1])
                print(json.dumps(row), flush=True)
    sys.stdout.flush()
    os._exit(0)


main()
