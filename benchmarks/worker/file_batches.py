"""Batches of uneven files (root-project/root#23136): reproduced with two threads, simulated for more.

``python -m benchmarks.worker.file_batches``
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.root_scripts import set_up_software
from treehammer.collectors.kit.treehammer_kit.columns import scheduling_bound

RELEASES = ("6.38.00", "6.40.00")
FORMATS = ("ttree", "rntuple")
THREADS = (4, 8, 16, 32, 64)
IN_ROOT = Path(__file__).with_name("file_batches_in_root.py")
#: Clusters of each file that is read, and events of a cluster.
CLUSTERS, EVENTS = (8, 1, 1, 1, 8, 1, 1, 1), 1000

#: Name -> entries of each file's clusters.
FILE_LISTS: dict[str, Sequence[Sequence[int]]] = {
    "100, every fifth with 40 clusters, the others 5": [
        [1] * (5 if number % 5 else 40) for number in range(100)
    ],
    "64, the first with 40 clusters, the others 2": [[1] * 40, *[[1] * 2] * 63],
    "100 of one cluster, every fifth 8 times as large": [
        [1 if number % 5 else 8] for number in range(100)
    ],
}
SCHEDULES = (
    scheduling_bound.bound_makespan,
    scheduling_bound.list_makespan,
    scheduling_bound.batch_makespan,
)


def simulate_efficiencies(files: Sequence[Sequence[int]], threads: int) -> list[float]:
    """Return the used share of the threads' time: bound, next free thread, batches."""
    work = sum(map(sum, files)) / threads
    return [work / makespan(files, threads) for makespan in SCHEDULES]


def write_files(
    release: str, file_format: str, folder: str | Path, clusters: Sequence[int], events: int
) -> None:
    """Write files ``FORMAT-NUMBER.root`` with so many clusters each, of so many events."""
    layout = ",".join(map(str, clusters))
    _run_in_root(release, "make", file_format, str(folder), layout, str(events))


def _run_in_root(release: str, *arguments: str) -> str:
    command = [set_up_software(release).python, "-W", "ignore", str(IN_ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def find_stalls(times: Sequence[Sequence[float]]) -> bool:
    """Return whether no file beyond the first two began before the first, large one had ended."""
    return all(began >= times[0][1] for began, _ in times[2:])


def main() -> None:
    """Print when each file was read, and the simulated efficiencies."""
    with tempfile.TemporaryDirectory() as folder:
        for file_format in FORMATS:
            write_files(RELEASES[-1], file_format, folder, CLUSTERS, EVENTS)
        for release in RELEASES:
            for file_format in FORMATS:
                times = json.loads(_run_in_root(release, "run", file_format, folder))
                text = ", ".join(f"{began:.0f}-{ended:.0f}" for began, ended in times)
                state = "stalls" if find_stalls(times) else "no stall"
                print(f"{release} {file_format:7} {state:8} ms of each file: {text}", flush=True)
    for name, files in FILE_LISTS.items():
        print(f"\n{name}\nthreads  bound  next free  batches")
        for threads in THREADS:
            shares = simulate_efficiencies(files, threads)
            print(f"{threads:7}  {shares[0]:5.2f}  {shares[1]:9.2f}  {shares[2]:7.2f}")


if __name__ == "__main__":
    main()
