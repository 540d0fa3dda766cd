"""Process statistics from /proc; a process that has vanished gives empty results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class IoCounters:
    """I/O of a process, its threads and the children it has reaped, in bytes."""

    read_chars: int = 0
    write_chars: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    def __add__(self, other: IoCounters) -> IoCounters:
        return IoCounters(
            self.read_chars + other.read_chars,
            self.write_chars + other.write_chars,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
        )


def read_text(path: str) -> str:
    """Read a small file of /proc or /sys; '' when unreadable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def read_io(pid: int) -> Optional[IoCounters]:
    """Read the I/O counters; exact and final for a process that has ended but was not reaped."""
    fields = dict(line.split(": ", 1) for line in read_text(f"/proc/{pid}/io").splitlines())
    try:
        return IoCounters(
            int(fields["rchar"]),
            int(fields["wchar"]),
            int(fields["read_bytes"]),
            int(fields["write_bytes"]),
        )
    except (KeyError, ValueError):
        return None


def read_run_queue_waits(pid: int) -> Dict[int, int]:
    """Read the nanoseconds that each thread was runnable but not running.

    Ended threads are not listed; of an ended process only the first thread is left.
    """
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return {}
    waits = {}
    for thread in threads:
        fields = read_text(f"{folder}/{thread}/schedstat").split()
        if len(fields) == 3:
            waits[int(thread)] = int(fields[1])
    return waits


def read_resident_bytes(pid: int) -> int:
    """Read the resident size; pages shared with other processes count in each."""
    fields = read_text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_SIZE if len(fields) > 1 else 0


def read_proportional_bytes(pid: int) -> int:
    """Read the resident size with each shared page divided among the processes that share it.

    More expensive than :func:`read_resident_bytes`, the fallback on kernels without it.
    """
    for line in read_text(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return read_resident_bytes(pid)


def measure_tree_bytes(pids: Sequence[int], at_least: int) -> int:
    """Measure the resident size of processes; pages that they share count once.

    A process right after a fork shares all pages with its parent, and after a vfork even its
    address space, in which every page counts as the process's own.

    Args:
        pids: the processes.
        at_least: a sum of sizes below this is returned as it is, which is much less expensive.
    """
    resident = {pid: read_resident_bytes(pid) for pid in pids}
    total = sum(resident.values())
    if total <= at_least or len(pids) < 2:
        return total
    # Equal processes are a parent in vfork and its child; two others hardly have the same sizes.
    distinct = {_describe_memory(pid): pid for pid in pids if resident[pid]}
    proportional = sum(map(read_proportional_bytes, distinct.values()))
    return min(total, max(proportional, *resident.values()))


def _describe_memory(pid: int) -> Tuple[str, str]:
    return read_text(f"/proc/{pid}/cmdline"), read_text(f"/proc/{pid}/statm")


def list_descendants(pid: int) -> List[int]:
    """List every process below ``pid``, including ended ones that were not reaped."""
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return _list_descendants_by_parent(pid)
    descendants: List[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            children = read_text(f"/proc/{parent}/task/{thread}/children").split()
            queue += map(int, children)
            descendants += map(int, children)
    return descendants


def _list_descendants_by_parent(pid: int) -> List[int]:
    """List descendants by scanning all processes, for kernels without lists of children."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            # The command's name stands in parentheses and may contain parentheses itself.
            fields = read_text(f"/proc/{name}/stat").rpartition(")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(name))
    descendants: List[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        queue += below
        descendants += below
    return descendants
