"""Bare loop over all branches of a tree, with planted work; runs inside ROOT's Python.

As a script it prints one JSON line. The standard library and ROOT only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BENCHMARKS_FOLDER = Path(__file__).resolve().parents[1]
HEADERS = ("payloads/bare_loop.hpp", "planted/planted_work.hpp")
TREE, CACHE_BYTES = "events", 30_000_000
#: Passes that are timed as one, after one that warms up.
TIMED_PASSES = 3


class ReadLoop:
    """Reads a file; the planted work is set by the environment variable PLANTED_BLOCKS."""

    def __init__(self, url: str) -> None:
        import ROOT

        for header in HEADERS:
            ROOT.gInterpreter.Declare((BENCHMARKS_FOLDER / header).read_text(encoding="utf-8"))
        self.url = url
        file = ROOT.TFile.Open(url)
        self.events = int(file.Get(TREE).GetEntries())
        file.Close()
        self.reader: Any = ROOT.bare.Reader()
        self.work: Any = ROOT.PlantedWork()

    def read(self) -> tuple[float, float]:
        """Open, read and close the file once; return CPU seconds of reading and planted work."""
        start = time.process_time()
        self.reader.Prepare(self.url, TREE, CACHE_BYTES)
        self.reader.Run(self.events)
        between = time.process_time()
        self.work.Run(self.events)
        planted = time.process_time() - between
        self.reader.Close()
        return between - start, planted


def main() -> None:
    loop = ReadLoop(sys.argv[1])
    loop.read()
    start = time.monotonic()
    costs = [loop.read() for _ in range(TIMED_PASSES)]
    seconds = time.monotonic() - start
    reading, planted = (sum(values) for values in zip(*costs, strict=True))
    print(json.dumps({"seconds": seconds, "planted": planted / reading}), flush=True)
    # ROOT's teardown is not measured.
    os._exit(0)


if __name__ == "__main__":
    main()
