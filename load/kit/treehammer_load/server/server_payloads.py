"""Payloads of the server side: its machine watched by Linux's /proc and /sys, its log followed."""

from __future__ import annotations

import csv
import os
import socket
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence

from .....collectors.kit.treehammer_kit.pass_summary import compute_share
from .....collectors.process_stats import read_text
from .....collectors.record.latency_histograms import LatencyHistogram
from ..load_driver import LoadTimer, stop_on_signals
from ..load_task import LoadTask
from ..payload import LoadOutcome, make_step_clock
from ..recorder import StepClock
from .log_formats import LogError, select_format
from .log_parser import LogFollower, LogParser
from .server_recorder import (
    MAX_PACKET_BYTES,
    ServerRecorder,
    StreamDecoder,
    StreamRecorder,
    make_server_row,
)

#: Bytes of a sector in /proc/diskstats, for every device.
SECTOR_BYTES = 512
#: Block devices on top of disks, whose traffic the disks below count.
_STACKED_DEVICES = ("loop", "ram", "zram", "dm-", "md", "bcache", "drbd", "zd")

#: Counter -> meaning, in the order of the table of time steps.
COUNTERS: Mapping[str, str] = {
    "cpu_s": "CPU seconds, of all cores",
    "io_wait_s": "seconds in which a core waited for disks",
    "total_s": "seconds of all cores",
    "net_in_bytes": "bytes received by network cards",
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
    counters = {**dict.fromkeys(COUNTERS, 0.0), **_read_cpu(), **_read_network(), **_read_disks()}
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
        size = read_text(f"/sys/block/{device}/queue/read_ahead_kb").strip()
        if size.isdigit():
            sizes_kb[device] = int(size)
    return sizes_kb


def _read_cpu() -> Dict[str, float]:
    for line in read_text("/proc/stat").splitlines():
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
    """Sum the traffic of network cards; without any, as in containers, of all but the loopback.

    Bonds, VLANs and bridges count what the cards below them count.
    """
    interfaces: Dict[str, List[str]] = {}
    for line in read_text("/proc/net/dev").splitlines():
        name, colon, values_text = line.partition(":")
        if colon and name.strip() != "lo":
            interfaces[name.strip()] = values_text.split()
    cards = [name for name in interfaces if os.path.exists(f"/sys/class/net/{name}/device")]
    columns = {"net_in_bytes": 0, "net_in_packets": 1, "net_out_bytes": 8, "net_out_packets": 9}
    return {
        key: sum((float(interfaces[name][column]) for name in cards or interfaces), 0.0)
        for key, column in columns.items()
    }


def _list_devices() -> Iterator[str]:
    try:
        names = sorted(os.listdir("/sys/block"))
    except OSError:
        return
    yield from (name for name in names if not name.startswith(_STACKED_DEVICES))


def _read_disks() -> Dict[str, float]:
    disks = set(_list_devices())
    sums = dict.fromkeys(("disk_reads", "disk_read_bytes", "disk_writes", "disk_write_bytes"), 0.0)
    for line in read_text("/proc/diskstats").splitlines():
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
    for line in read_text(path).splitlines():
        prefix, colon, values_text = line.partition(":")
        if not colon or prefix != name:
            continue
        if not names:
            names = values_text.split()
        else:
            return dict(zip(names, map(float, values_text.split())))  # noqa: B905  (Python 3.9)
    return {}


#: Seconds after the load for calls that are still on their way, and for lines in the server's buffer.
SETTLE_S = 2.0
_POLL_S = 0.2
#: Value of the setting ``format`` for packets instead of a log.
MONITORING_FORMAT = "xrootd-monitoring"


class _ServerSide:
    """Time and names of a server's part in a load.

    Args:
        task: the load.
        covers_past: whether a job that comes late misses nothing.
    """

    def __init__(self, task: LoadTask, *, covers_past: bool = False) -> None:
        start_us = round(time.time() * 1e6) if task.start_us is None else task.start_us
        self.timer = LoadTimer.from_start(start_us, stop_on_signals())
        if covers_past:  # a log also holds entries from before this job
            self.steps = StepClock(task.step_s, start_us, task.first_step)
        else:
            self.steps = make_step_clock(task, start_us, self.timer.now())
        self.duration_s = task.duration_s
        self._end_file = task.end_file
        self.server = str(task.settings.get("server") or socket.gethostname())
        self.values: Dict[str, Any] = {}

    def find_end_s(self) -> float:
        """Return the end of the load, which is earlier once all jobs that load have ended."""
        now_s = self.timer.now()
        if now_s < self.duration_s and self._end_file and os.path.exists(self._end_file):
            self._end_file = ""
            self.duration_s = max(now_s, self.steps.first * self.steps.step_s + 1e-3)
        return self.duration_s

    def wait_until(self, instant_s: float) -> bool:
        """Wait until an instant or the end of the load; return whether the watch goes on."""
        while True:
            left_s = min(instant_s, self.find_end_s()) - self.timer.now()
            if left_s <= 0 or self.timer.wait(min(left_s, _POLL_S)):
                return not self.timer.stopped and self.timer.now() < self.duration_s

    def begin(self) -> None:
        """Wait for the start of the load, and note it."""
        start_s = self.steps.first * self.steps.step_s
        self.timer.wait(max(0.0, start_s - self.timer.now()))
        self.values["load_started_us"] = self.steps.start_us + round(self.timer.now() * 1e6)


def follow_log(task: LoadTask) -> LoadOutcome:
    """Count the calls in a server's log that begin during the load, or soon after it.

    Raises:
        LogError: the log or its format cannot be used.
    """
    path = str(task.settings.get("log") or "")
    if not path:
        raise LogError("log is not set: -S watch.log=PATH names the server's log")
    settle_s = task.read_number("settle_s", SETTLE_S, (0, 600), zero=True)
    if task.settings.get("format") == MONITORING_FORMAT:
        return _receive_stream(task, path, settle_s)
    parser = LogParser(select_format(task.settings.get("format", "xrootd")))
    side = _ServerSide(task, covers_past=True)
    recorder = ServerRecorder(side.steps, side.duration_s, settle_s, side.server)

    def wait() -> bool:
        end_s = side.find_end_s() + settle_s
        recorder.end_load(side.duration_s, settle_s)
        side.timer.wait(max(min(_POLL_S, end_s - side.timer.now()), 0.0))
        return not side.timer.stopped and side.timer.now() < end_s

    follower = LogFollower(path, wait, side.steps.start_us, parser.reader.find_time)
    side.begin()
    try:
        for call in parser.parse(follower.follow()):
            recorder.record(call)
    finally:
        follower.close()
    end_us = side.steps.start_us + round((side.duration_s + settle_s) * 1e6)
    for call in parser.close(end_us):
        recorder.record(call)
    rows = recorder.list_rows()
    figures = {
        "calls": float(recorder.calls),
        "failed_calls": float(sum(row["failed"] for row in rows)),
    }
    return LoadOutcome(rows, side.values, figures)


def _receive_stream(task: LoadTask, address: str, settle_s: float) -> LoadOutcome:
    """Count the calls that XRootD reports to an address, HOST:PORT of UDP, during the load."""
    host, _, port = address.rpartition(":")
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if not host:
            raise ValueError("the host is missing")
        receiver.bind((host, int(port)))
    except (OSError, ValueError, OverflowError) as error:
        receiver.close()
        raise LogError(
            f"log = {address!r}: {error}: name HOST:PORT, to which xrootd.monitor sends"
        ) from error
    receiver.settimeout(_POLL_S)
    side = _ServerSide(task)
    recorder = StreamRecorder(side.steps, side.duration_s, settle_s, side.server)
    decoder = StreamDecoder()
    side.begin()
    with receiver:
        while not side.timer.stopped and side.timer.now() < side.find_end_s() + settle_s:
            recorder.end_load(side.duration_s, settle_s)
            try:
                packet = receiver.recv(MAX_PACKET_BYTES)
            except OSError:  # none arrived
                continue
            for event in decoder.decode(packet):
                recorder.record_event(event)
    figures = {
        "calls": float(recorder.calls),
        "lost_packets": float(decoder.lost + decoder.invalid),
    }
    return LoadOutcome(recorder.list_rows(), side.values, figures)


def watch_server(task: LoadTask) -> LoadOutcome:
    """Watch CPU, disks, network and listen queues of this machine; print a table of time steps."""
    side = _ServerSide(task)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("step", "seconds", *COUNTERS))
    side.begin()
    states = [read_system_figures(side.timer.now())]
    rows: List[Dict[str, Any]] = []
    changes: List[Dict[str, float]] = []
    for step in range(side.steps.first, side.steps.find_step(side.duration_s - 1e-6) + 1):
        continues = side.wait_until((step + 1) * side.steps.step_s)
        states.append(read_system_figures(side.timer.now()))
        change = states[-1].subtract(states[-2])
        seconds = max(states[-1].time_s - states[-2].time_s, 1e-3)
        table.writerow((step, f"{seconds:.3f}", *(f"{change[name]:g}" for name in COUNTERS)))
        changes.append(change)
        rows += _make_system_rows(side, step, change, change["cpu_s"] / seconds)
        if not continues:
            break
    return LoadOutcome(rows, side.values, summarize_system(states, changes))


def _make_system_rows(
    side: _ServerSide, step: int, change: Dict[str, float], cores: float
) -> Iterator[Dict[str, Any]]:
    """Make the rows of one step: connections, packets and transfers of disks, without latencies."""
    refused = int(change["listen_drops"])
    for operation, done, moved, failures in (
        ("connect", "connections", "", {"refused": refused} if refused else {}),
        ("net_receive", "net_in_packets", "net_in_bytes", {}),
        ("net_send", "net_out_packets", "net_out_bytes", {}),
        ("disk_read", "disk_reads", "disk_read_bytes", {}),
        ("disk_write", "disk_writes", "disk_write_bytes", {}),
    ):
        number = int(change[done])
        row = make_server_row(
            side.steps,
            side.duration_s,
            step,
            LatencyHistogram(),
            failures,
            operation=operation,
            server=side.server,
            scheduled=number + sum(failures.values()),
            bytes=int(change[moved]) if moved else 0,
            generator_cpu=cores,
        )
        yield {**row, "done": number}


def summarize_system(
    states: Sequence[SystemFigures], changes: Sequence[Dict[str, float]]
) -> Dict[str, float]:
    """Summarize the time steps: shares of all cores, rates, events, and the read-ahead settings."""
    seconds = max(states[-1].time_s - states[0].time_s, 1e-3)
    total = states[-1].subtract(states[0])
    figures: Dict[str, float] = {}
    for name in ("cpu", "io_wait"):
        share, *shares = (
            compute_share(change[f"{name}_s"], change["total_s"]) for change in (total, *changes)
        )
        figures.update({f"{name}_share": share, f"{name}_share_max": max(shares, default=0.0)})
    for name in ("net_in", "net_out", "disk_read", "disk_write"):
        figures[f"{name}_mb_per_s"] = total[f"{name}_bytes"] / seconds / 1e6
    for name in ("connections", "listen_overflows", "listen_drops", "syn_retries"):
        figures[name] = total[name]
    settings = read_read_ahead().values()
    if settings:
        figures.update(
            read_ahead_kb_min=float(min(settings)), read_ahead_kb_max=float(max(settings))
        )
    return figures
