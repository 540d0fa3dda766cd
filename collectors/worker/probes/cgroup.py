"""Limits and counters of the worker's control group, versions 1 and 2.

The smallest limit of all groups up to the visible root applies.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional

from .process_stats import read_text

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
        matches = (
            kind[0] == "cgroup" and controller in kind[-1].split(",")
            if controller
            else kind[0] == "cgroup2"
        )
        if matches:
            # Inside a container the mount shows only a part of the host's hierarchy.
            inside = os.path.relpath(path, fields[3])
            top = fields[4]
            folder = top if inside.startswith("..") else os.path.normpath(os.path.join(top, inside))
            return _list_ancestors(folder, top)
    return []


def _list_ancestors(folder: str, top: str) -> List[str]:
    folders = [folder]
    while folders[-1] != top:
        folders.append(os.path.dirname(folders[-1]))
    return folders


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
        if self._unified:
            counters = _read_counters(f"{self._unified[0]}/cpu.stat")
            if "throttled_usec" in counters:
                return counters["throttled_usec"] / 1e6
        if self._cpu:
            counters = _read_counters(f"{self._cpu[0]}/cpu.stat")
            if "throttled_time" in counters:
                return counters["throttled_time"] / 1e9
        return None

    def oom_kills(self) -> int:
        """Count the processes killed by the kernel's OOM killer in the group, else on the node."""
        for folders, name in (
            (self._unified, "memory.events"),
            (self._memory, "memory.oom_control"),
        ):
            if folders:
                counters = _read_counters(f"{folders[0]}/{name}")
                if "oom_kill" in counters:
                    return counters["oom_kill"]
        return _read_counters("/proc/vmstat").get("oom_kill", 0)


def _cpu_quota(quota: str = "", period: str = "") -> Optional[float]:
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def _read_counters(path: str) -> Dict[str, int]:
    pairs = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
