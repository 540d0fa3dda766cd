"""Choice of the core on which both processes of a launch run."""

from __future__ import annotations

import os
import time
from typing import Callable, Dict, Optional

from ..probes.process_stats import read_text

#: Seconds over which the cores' idle time is compared.
OBSERVATION_S = 0.1


def choose_core() -> Optional[int]:
    """Choose the most idle of the allowed cores; None where this node refuses to pin processes.

    Launches of several jobs on one node thus avoid each other's core.
    """
    allowed = sorted(os.sched_getaffinity(0))
    before = _read_idle_ticks()
    time.sleep(OBSERVATION_S)
    after = _read_idle_ticks()
    core = max(allowed, key=lambda number: after.get(number, 0) - before.get(number, 0))
    return core if _can_pin(core) else None


def make_pinning(core: Optional[int]) -> Callable[[], None]:
    """Return a function that pins a new child process, before it runs its program."""

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    return pin


def _can_pin(core: int) -> bool:
    former = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(0, former)
    except OSError:
        return False
    return True


def _read_idle_ticks() -> Dict[int, int]:
    """Read the idle time of each core since boot, in clock ticks."""
    ticks = {}
    for line in read_text("/proc/stat").splitlines():
        name, _, rest = line.partition(" ")
        fields = rest.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(fields) > 3:
            ticks[int(name[3:])] = int(fields[3])
    return ticks
