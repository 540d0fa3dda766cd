"""Counters of a machine, from Linux's /proc and /sys."""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, Mapping, NamedTuple

#: Bytes of a sector in /proc/diskstats, for every device.
SECTOR_BYTES = 512
#: Block devices on top of disks, whose traffic the disks below count.
_STACKED_DEVICES = ("loop", "ram", "zram", "dm-", "md")

#: Counter -> meaning, in the order of the table of time steps.
COUNTERS: Mapping[str, str] = {
    "cpu_s": "CPU seconds, of all cores",
    "io_wait_s": "seconds in which a core waited for disks",
    "total_s": "seconds of all cores",
    "net_in_bytes": "bytes received, without the loopback",
    "net_out_bytes": "bytes sent",
    "net_in_packets": "packets received",
    "net_out_packets": "packets sent",
    "disk_reads": "reads that disks completed",
    "disk_read_bytes": "bytes of them",
    "disk_writes": "writes that disks completed",
    "disk_write_bytes": "bytes of them",
    "connections": "connections accepted by the kernel",
    "listen_overflows": "connections refused since a listen queue was full",
    "listen_drops": "connection requests that were dropped, for this and other reasons",
    "syn_retries": "SYN and SYN-ACK packets that were sent again",
}


class SystemFigures(NamedTuple):
    """State of the counters at an instant."""

    time_s: float
    counters: Mapping[str, float]

    def subtract(self, earlier: SystemFigures) -> Dict[str, float]:
        """Return the increase since an earlier state; counters that were reset give 0."""
        return {
            name: max(value - earlier.counters.get(name, 0.0), 0.0)
            for name, value in self.counters.items()
        }


def read_system_figures(time_s: float) -> SystemFigures:
    """Read all counters; those that the system lacks are 0."""
    counters = dict.fromkeys(COUNTERS, 0.0)
    counters.update(_read_cpu())
    counters.update(_read_network())
    counters.update(_read_disks())
    extended = _read_protocol("/proc/net/netstat", "TcpExt")
    basic = _read_protocol("/proc/net/snmp", "Tcp")
    counters["connections"] = basic.get("PassiveOpens", 0.0)
    counters["listen_overflows"] = extended.get("ListenOverflows", 0.0)
    counters["listen_drops"] = extended.get("ListenDrops", 0.0)
    counters["syn_retries"] = extended.get("TCPSynRetrans", 0.0)
    return SystemFigures(time_s, counters)


def read_read_ahead() -> Dict[str, int]:
    """Return the read-ahead setting of each block device in kB."""
    sizes_kb = {}
    for device in _list_devices():
        for line in _read_lines(f"/sys/block/{device}/queue/read_ahead_kb"):
            if line.strip().isdigit():
                sizes_kb[device] = int(line)
    return sizes_kb


def _read_lines(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.readlines()
    except OSError:
        return []


def _read_cpu() -> Dict[str, float]:
    for line in _read_lines("/proc/stat"):
        name, *texts = line.split()
        if name == "cpu":
            # user, nice, system, idle, iowait, irq, softirq, steal; guests are within user and nice.
            ticks = [float(text) for text in texts[:8]] + [0.0] * (8 - len(texts[:8]))
            hertz = float(os.sysconf("SC_CLK_TCK"))
            idle, io_wait = ticks[3], ticks[4]
            return {
                "cpu_s": (sum(ticks) - idle - io_wait) / hertz,
                "io_wait_s": io_wait / hertz,
                "total_s": sum(ticks) / hertz,
            }
    return {}


def _read_network() -> Dict[str, float]:
    sums = dict.fromkeys(
        ("net_in_bytes", "net_in_packets", "net_out_bytes", "net_out_packets"), 0.0
    )
    for line in _read_lines("/proc/net/dev"):
        name, colon, values_text = line.partition(":")
        values = values_text.split()
        if colon and name.strip() != "lo" and len(values) >= 10:
            for index, key in zip((0, 1, 8, 9), sums):  # noqa: B905  (Python 3.9)
                sums[key] += float(values[index])
    return sums


def _list_devices() -> Iterator[str]:
    try:
        names = sorted(os.listdir("/sys/block"))
    except OSError:
        return
    yield from (name for name in names if not name.startswith(_STACKED_DEVICES))


def _read_disks() -> Dict[str, float]:
    disks = set(_list_devices())
    sums = dict.fromkeys(("disk_reads", "disk_read_bytes", "disk_writes", "disk_write_bytes"), 0.0)
    for line in _read_lines("/proc/diskstats"):
        values = line.split()
        if len(values) >= 10 and values[2] in disks:
            sums["disk_reads"] += float(values[3])
            sums["disk_read_bytes"] += float(values[5]) * SECTOR_BYTES
            sums["disk_writes"] += float(values[7])
            sums["disk_write_bytes"] += float(values[9]) * SECTOR_BYTES
    return sums


def _read_protocol(path: str, name: str) -> Dict[str, float]:
    """Read the pair of lines of a protocol: names, then values."""
    names: List[str] = []
    for line in _read_lines(path):
        prefix, colon, values_text = line.partition(":")
        if not colon or prefix != name:
            continue
        if not names:
            names = values_text.split()
        else:
            return dict(zip(names, map(float, values_text.split())))  # noqa: B905  (Python 3.9)
    return {}
