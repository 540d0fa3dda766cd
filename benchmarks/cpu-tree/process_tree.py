"""A process tree of a given shape; each process notes its own CPU clock."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

CPU_S = 1.0
RESULT = Path(os.environ["TREEHAMMER_RESULT"])
CLOCKS = RESULT.with_name("clocks")


def burn_cpu(seconds: float) -> None:
    """Use CPU time in this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def exit_process() -> NoReturn:
    """End this process; read its clock as late as possible."""
    note = CLOCKS / f"{os.getpid()}.new"
    note.write_text(repr(time.process_time()))
    note.rename(note.with_suffix(".done"))
    os._exit(0)


def fork_child(work: Callable[[], object]) -> int:
    """Start a process that does some work and ends; return its pid."""
    pid = os.fork()
    if pid == 0:
        work()
        exit_process()
    return pid


def single_process() -> int:
    burn_cpu(CPU_S)
    return 0


def run_threads() -> int:
    crew = [threading.Thread(target=burn_cpu, args=(CPU_S / 4,)) for _ in range(4)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return 0


def sequential_children() -> int:
    for _ in range(10):
        os.waitpid(fork_child(lambda: burn_cpu(CPU_S / 10)), 0)
    return 10


def concurrent_children() -> int:
    for pid in [fork_child(lambda: burn_cpu(CPU_S / 200)) for _ in range(200)]:
        os.waitpid(pid, 0)
    return 200


def nested_children(depth: int = 5) -> int:
    def below() -> None:
        burn_cpu(CPU_S / 5)
        if depth > 1:
            nested_children(depth - 1)

    os.waitpid(fork_child(below), 0)
    return depth


def orphaned_grandchildren() -> int:
    """Create grandchildren whose parent has ended; only a sub-reaper can wait for them."""
    for _ in range(10):
        os.waitpid(fork_child(lambda: fork_child(lambda: burn_cpu(CPU_S / 10))), 0)
    return 20


SHAPES: dict[str, Callable[[], int]] = {
    "one": single_process,
    "threads": run_threads,
    "in a row": sequential_children,
    "burst": concurrent_children,
    "nested": nested_children,
    "orphans": orphaned_grandchildren,
}


def main() -> NoReturn:
    CLOCKS.mkdir()
    made = SHAPES[os.environ["TREEHAMMER_AXIS_SHAPE"]]()
    done: list[Path] = []
    while len(done) < made:
        time.sleep(0.01)
        done = list(CLOCKS.glob("*.done"))
    clocks = sum(float(note.read_text()) for note in done)
    extras = {"own_clocks_s": clocks + time.process_time(), "made": made + 1}
    RESULT.write_text(json.dumps({"format": 1, "extras": extras}))
    os._exit(0)


main()
