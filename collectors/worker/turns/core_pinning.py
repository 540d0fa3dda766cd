"""Choice of the core on which both processes of a launch run."""

from __future__ import annotations

import fcntl
import os
import random
import time
from contextlib import contextmanager
from typing import Callable, Collection, Dict, Iterator, List, Optional

from ..probes.lock_folder import make_lock_folder
from ..probes.process_stats import read_text

#: Seconds over which the cores' idle time is compared.
OBSERVATION_S = 0.1


@contextmanager
def reserve_core(base: str = "") -> Iterator[Optional[int]]:
    """Reserve the most idle of the allowed cores; None where this node refuses to pin processes.

    Launches of a user's other jobs on this node avoid a reserved core as long as there is another
    one.  They see the reservation as a lock that the kernel releases however the process ends.
    Equally idle cores are taken at random, since locks are invisible between containers.

    Args:
        base: folder of the locks, by default /tmp.
    """
    cores = _sort_by_idleness(os.sched_getaffinity(0))
    folder = make_lock_folder("cores", base)
    lock = None
    try:
        core = cores[0]
        for candidate in cores if folder else ():
            lock = _try_lock(os.path.join(str(folder), f"{candidate}.lock"))
            if lock is not None:
                core = candidate
                break
        yield core if _can_pin(core) else None
    finally:
        if lock is not None:
            os.close(lock)


def _sort_by_idleness(cores: Collection[int]) -> List[int]:
    before = _read_idle_ticks()
    time.sleep(OBSERVATION_S)
    after = _read_idle_ticks()
    shuffled = random.sample(sorted(cores), len(cores))
    return sorted(shuffled, key=lambda core: before.get(core, 0) - after.get(core, 0))


def _try_lock(path: str) -> Optional[int]:
    """Lock a file; return its descriptor, or None where another process holds it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


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
        name, _, values_text = line.partition(" ")
        fields = values_text.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(fields) > 3:
            ticks[int(name[3:])] = int(fields[3])
    return ticks
