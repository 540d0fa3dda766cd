"""Opens and reads through doors in turn, in one ROOT; part of :mod:`benchmarks.worker.tls_cost`.

Gets the task as JSON in its first argument and prints one JSON object for each door and round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

#: Sequential blocks of 1 MiB, and one vector read like that of a TTreeCache with sparse baskets.
READERS = """
#include <TFile.h>
bool ReadBlocks(TFile &file) {
   const Int_t length = 1 << 20;
   std::vector<char> buffer(length);
   for (Long64_t at = 0; at + length <= file.GetSize(); at += length)
      if (file.ReadBuffer(buffer.data(), at, length))
         return false;
   return true;
}
bool ReadVector(TFile &file) {
   const Int_t pieces = 256, length = 32768;
   std::vector<char> buffer(pieces * length);
   std::vector<Long64_t> positions;
   std::vector<Int_t> lengths(pieces, length);
   for (Int_t i = 0; i < pieces; ++i)
      positions.push_back(i * ((file.GetSize() - length) / pieces));
   return !file.ReadBuffers(buffer.data(), positions.data(), lengths.data(), pieces);
}
"""


def measure_door(root: Any, url: str, opens: int) -> dict[str, float]:
    """Time a new connection, opens on it, sequential blocks and vector reads."""
    figures: dict[str, float] = {}
    file = _timed(figures, "connect", lambda: root.TFile.Open(_own_connection(url)))
    _timed(figures, "opens", lambda: [root.TFile.Open(url).Close() for _ in range(opens)])
    _timed(figures, "blocks", lambda: _check(root.ReadBlocks(file)))
    _timed(figures, "vectors", lambda: _check(root.ReadVector(file)))
    file.Close()
    return figures


def _own_connection(url: str) -> str:
    """Add a user to a URL, for whom XRootD's client makes a connection."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://u{time.time_ns() % 10**7:07}@{rest}"


def _check(good: bool) -> None:
    if not good:
        raise OSError("a read failed")


def _timed(figures: dict[str, float], name: str, do: Any) -> Any:
    start, cpu = time.perf_counter(), time.process_time()
    result = do()
    figures[f"{name}_s"] = time.perf_counter() - start
    figures[f"{name}_cpu_s"] = time.process_time() - cpu
    return result


def main() -> None:
    """Measure every door once per round, in an order that alternates."""
    task = json.loads(sys.argv[1])
    os.chdir(task["folder"])  # holds the .rootrc, which ROOT reads when it is imported
    import ROOT

    ROOT.gInterpreter.Declare(READERS)
    for number in range(-1, task["rounds"]):  # the first round warms up
        doors = sorted(task["urls"].items(), reverse=bool(number % 2))
        for door, url in doors:
            figures = measure_door(ROOT, url, task["opens"])
            if number >= 0:
                print(json.dumps({"round": number, "door": door, **figures}), flush=True)


if __name__ == "__main__":
    main()
