"""Accounts of the kernel: statistics of processes from /proc, and the worker's control group.

A process that has vanished gives empty results.  Control groups of
versions 1 and 2 are supported; the smallest limit of all groups up to the visible root applies.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Dict, List, Optional, Sequence, TextIO

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def read_text(path: str) -> str:
    """Read a small file of /proc or /sys; '' when unreadable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def read_io(pid: int, account: Optional[TextIO] = None) -> Dict[str, int]:
    """Read the I/O of a process, its threads and the children it has reaped, by the kernel's names.

    Exact and final for a process that has ended but was not reaped; empty where it is hidden.
    """
    try:
        text = account.read() if account else read_text(f"/proc/{pid}/io")
        return {
            name: int(value) for name, value in (line.split(": ") for line in text.splitlines())
        }
    except (OSError, ValueError):
        return {}


def read_run_queue_waits(pid: int) -> Dict[int, int]:
    """Read the nanoseconds that each thread was runnable but not running.

    Ended threads are not listed; of an ended process only the first thread is left.
    """
    folder = f"/proc/{pid}/task"
    waits: Dict[int, int] = {}
    with suppress(OSError):
        for thread in os.listdir(folder):
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


def read_huge_page_bytes(pid: int) -> Optional[int]:
    """Read the memory and the file content that a process has in huge pages; None where it is hidden."""
    sizes = [
        int(line.split()[1]) * 1024
        for line in read_text(f"/proc/{pid}/smaps_rollup").splitlines()
        if line.startswith(("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"))
    ]
    return sum(sizes) if sizes else None


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
    distinct = {
        tuple(read_text(f"/proc/{pid}/{name}") for name in ("cmdline", "statm")): pid
        for pid in pids
        if resident[pid]
    }
    proportional = sum(map(read_proportional_bytes, distinct.values()))
    return min(total, max(proportional, *resident.values()))


def list_descendants(pid: int) -> List[int]:
    """List every process below ``pid``, including ended ones that were not reaped."""
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return _list_descendants_by_parent(pid)
    descendants: List[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop()
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
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


#: Version 1 reports a number near 2**63 for "no limit".
_UNLIMITED_BYTES = 2**60


def _find_group_folders(controller: str, groups: str, mounts: str) -> List[str]:
    """Find the group folders of ``controller`` ('' is version 2), from this process to the root."""
    path = None
    for line in groups.splitlines():
        _, names, group = line.split(":", 2)
        if controller in names.split(","):
            path = group
    if path is None:
        return []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        matches = kind[0] == "cgroup2"
        if controller:
            matches = kind[0] == "cgroup" and controller in kind[-1].split(",")
        if matches:
            # Inside a container the mount shows only a part of the host's hierarchy.
            inside = os.path.relpath(path, fields[3])
            top = fields[4]
            folder = top if inside.startswith("..") else os.path.normpath(os.path.join(top, inside))
            folders = [folder]
            while folders[-1] != top:
                folders.append(os.path.dirname(folders[-1]))
            return folders
    return []


class Cgroup:
    """The control group of this process; unknown values are None."""

    def __init__(self, groups: str = "", mounts: str = "") -> None:
        groups = groups or read_text("/proc/self/cgroup")
        mounts = mounts or read_text("/proc/self/mountinfo")
        self._unified = _find_group_folders("", groups, mounts)
        self._cpu = _find_group_folders("cpu", groups, mounts)
        self._memory = _find_group_folders("memory", groups, mounts)

    def cpu_limit(self) -> Optional[float]:
        """Return the number of CPUs the group may use."""
        limits = [
            _cpu_quota(*read_text(f"{folder}/cpu.max").split()[:2]) for folder in self._unified
        ]
        limits += [
            _cpu_quota(
                read_text(f"{folder}/cpu.cfs_quota_us"), read_text(f"{folder}/cpu.cfs_period_us")
            )
            for folder in self._cpu
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def memory_limit(self) -> Optional[int]:
        """Return the bytes of memory the group may use."""
        files = [f"{folder}/memory.max" for folder in self._unified]
        files += [f"{folder}/memory.limit_in_bytes" for folder in self._memory]
        texts = (read_text(path).strip() for path in files)
        limits = (int(text) for text in texts if text.isdigit())
        return min((limit for limit in limits if limit < _UNLIMITED_BYTES), default=None)

    def throttled_s(self) -> Optional[float]:
        """Return the seconds for which the group was throttled so far, summed over its CPUs."""
        microseconds = _find_counter(self._unified, "cpu.stat", "throttled_usec")
        if microseconds is not None:
            return microseconds / 1e6
        nanoseconds = _find_counter(self._cpu, "cpu.stat", "throttled_time")
        return None if nanoseconds is None else nanoseconds / 1e9

    def oom_kills(self) -> int:
        """Count the processes killed by the kernel's OOM killer in the group, else on the node."""
        counts = (
            _find_counter(self._unified, "memory.events", "oom_kill"),
            _find_counter(self._memory, "memory.oom_control", "oom_kill"),
            _find_counter(["/proc"], "vmstat", "oom_kill"),
        )
        return next((count for count in counts if count is not None), 0)


def _cpu_quota(quota: str = "", period: str = "") -> Optional[float]:
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def _find_counter(folders: Sequence[str], file: str, name: str) -> Optional[int]:
    """Find a counter in a file of the first folder; None if it is not there."""
    pairs = (
        line.split() for path in folders[:1] for line in read_text(f"{path}/{file}").splitlines()
    )
    return next((int(pair[1]) for pair in pairs if pair[:1] == [name]), None)
