"""State of the node: facts, speed of its core, counters during an execution."""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import socket
import time
from typing import Dict, List, Mapping, Optional, Union

from ...process_stats import Cgroup, read_text

#: The reported time is that of this many rounds, about 0.3 s of CPU on a core of 2024.  Changing it
#: changes the instrument.
REPORTED_ROUNDS = 2_500_000
#: Rounds that are run.  The loop runs before and after each execution, and all of
#: :data:`REPORTED_ROUNDS` took a tenth of the CPU of short payloads.
TIMED_ROUNDS = 500_000


def measure_calibration() -> float:
    """Measure the CPU seconds that this thread needs for :data:`REPORTED_ROUNDS`.

    The loop is plain Python (integers, branches, almost no memory), so that its time follows the
    clock rate and the load of neighbors.  Values compare only between equal ``worker_python``.
    """
    start = time.thread_time()
    state = 1
    for _ in range(TIMED_ROUNDS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        if state & 0x10000:
            state ^= 0x5A5A5A5A
    return (time.thread_time() - start) * (REPORTED_ROUNDS / TIMED_ROUNDS)


NodeFacts = Dict[str, Union[int, float, str, None]]

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def collect_node_facts(cgroup: Cgroup) -> NodeFacts:
    """Collect the facts that do not change during a job, by catalogue name."""
    cpuinfo = read_text("/proc/cpuinfo").splitlines()
    host = socket.gethostname()
    os_name = _find_line("/etc/os-release", "PRETTY_NAME=")
    return {
        "host": host,
        "machine": find_machine(
            host,
            read_text(os.environ.get("_CONDOR_MACHINE_AD", "")),
            _read_machine_id(),
            read_text("/proc/sys/kernel/random/boot_id"),
        ),
        "cpu_model": find_cpu_model(cpuinfo),
        "architecture": platform.machine() or None,
        "cores_online": os.sysconf("SC_NPROCESSORS_ONLN"),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "cgroup_cpu_limit": cgroup.cpu_limit(),
        "cgroup_memory_limit_bytes": cgroup.memory_limit(),
        "mem_total_bytes": _read_memory("MemTotal"),
        "kernel": platform.release(),
        "os_name": os_name and os_name.strip('"'),
        "container": detect_container(),
        "slot": os.environ.get("TREEHAMMER_BATCH_SLOT") or os.environ.get("_CONDOR_SLOT"),
        "worker_python": platform.python_version(),
    }


#: Counter of a snapshot -> metric of its increase.
_INCREASES = {
    "steal": "cpu_steal_s",
    "cpu": "psi_cpu_some_s",
    "io": "psi_io_some_s",
    "memory": "psi_memory_some_s",
    "throttled": "cgroup_throttled_s",
}
#: Counters of the node at one moment, in seconds since boot, and its load, memory and clock rate.
NodeSnapshot = Mapping[str, Optional[float]]


def take_snapshot(cgroup: Cgroup) -> NodeSnapshot:
    """Read all counters of the node now."""
    load = read_text("/proc/loadavg").split()
    ticks = read_text("/proc/stat").partition("\n")[0].split()
    cpuinfo = read_text("/proc/cpuinfo").splitlines()
    rates_mhz = [float(text) for text in _read_cpu_values(cpuinfo, "cpu MHz") if text != "Unknown"]
    return {
        "load": float(load[0]) if load else None,
        "available_bytes": _read_memory("MemAvailable"),
        "steal": int(ticks[8]) / _TICKS_PER_SECOND if len(ticks) > 8 else None,
        **{name: _read_pressure_s(name) for name in ("cpu", "io", "memory")},
        "throttled": cgroup.throttled_s(),
        "mhz": sum(rates_mhz) / len(rates_mhz) if rates_mhz else None,
        "clock": time.clock_gettime(time.CLOCK_MONOTONIC),
        "raw_clock": time.clock_gettime(time.CLOCK_MONOTONIC_RAW),
    }


def compare_snapshots(before: NodeSnapshot, after: NodeSnapshot) -> NodeFacts:
    """Compute the node's metrics between two snapshots, by catalogue name."""
    increases: Dict[str, Optional[float]] = {}
    for name in (*_INCREASES, "clock", "raw_clock"):
        start, end = before[name], after[name]
        # A counter may go backwards, as steal time on some kernels.
        is_known = start is not None and end is not None and end >= start
        increases[name] = (end or 0.0) - (start or 0.0) if is_known else None
    elapsed_s, raw_s = increases["clock"], increases["raw_clock"]
    return {
        "cpu_mhz": after["mhz"],
        "raw_clock_ratio": raw_s / elapsed_s if elapsed_s and raw_s is not None else None,
        **{metric: increases[name] for name, metric in _INCREASES.items()},
        "load1_start": before["load"],
        "load1_end": after["load"],
        "mem_available_start_bytes": before["available_bytes"],
        "mem_available_end_bytes": after["available_bytes"],
    }


def detect_container() -> Optional[str]:
    """Detect the container or virtual machine that this process runs in."""
    for variable in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if os.environ.get(variable):
            return f"apptainer {os.environ[variable]}"
    for path, name in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if os.path.exists(path):
            return name
    container = read_text("/run/systemd/container").strip()
    if container:
        return container
    if " hypervisor" in read_text("/proc/cpuinfo"):
        product = read_text("/sys/class/dmi/id/product_name").strip()
        return f"virtual machine {product}".strip()
    return None


def find_cpu_model(cpuinfo: List[str]) -> Optional[str]:
    """Find the model; on ARM, whose kernels do not name it, the numbers of its maker and its core."""
    model = next(iter(_read_cpu_values(cpuinfo, "model name")), None)
    if model is not None:
        return model
    numbers = [
        f"{key.partition(' ')[2]} {value}"
        for key in ("CPU implementer", "CPU part", "CPU variant")
        for value in _read_cpu_values(cpuinfo, key)[:1]
    ]
    return ", ".join(numbers) or None


def find_machine(host: str, machine_ad: str, machine_id: str, boot_id: str) -> Optional[str]:
    """Find an identity of the machine that outlives its pods, pilots and containers.

    It is the machine's name in the batch system's pool, if that says more than the host name; else a
    hash of its machine-id, which is confidential; in containers, where that is the image's, of the
    kernel's boot identity.

    Args:
        host: the host name.
        machine_ad: HTCondor's ad of the slot; '' without one.
        machine_id: the machine-id and network addresses, which distinguish clones; '' in a
            container.
        boot_id: the boot identity of the kernel, which containers share.
    """
    for line in machine_ad.splitlines():
        name, _, value = line.partition("=")
        machine = value.strip(' "\t')
        if name.strip().lower() != "machine" or not machine:
            continue
        if machine.partition(".")[0] != host.partition(".")[0]:
            return machine
    # Images say "uninitialized" where each of their machines shall get an identity of its own.
    identities = (text.strip() for text in (machine_id, boot_id))
    identity = next((text for text in identities if len(text) >= 32), "")
    return hashlib.sha256(f"treehammer {identity}".encode()).hexdigest()[:16] if identity else None


def _read_machine_id() -> str:
    """Read the machine-id and the addresses of network cards, by which cloned machines differ.

    Return '' in a container, whose machine-id is that of its image: no systemd runs there.
    """
    identity = read_text("/etc/machine-id").strip()
    if len(identity) < 32 or not os.path.isdir("/run/systemd/system"):
        return ""
    cards = (os.path.dirname(path) for path in glob.glob("/sys/class/net/*/device"))
    return " ".join([identity, *sorted(read_text(f"{card}/address").strip() for card in cards)])


def _read_cpu_values(cpuinfo: List[str], key: str) -> List[str]:
    return [line.partition(":")[2].strip() for line in cpuinfo if line.startswith(key)]


def _find_line(path: str, start: str) -> Optional[str]:
    """Return the rest of the first line of a file with this start; None without one."""
    lines = read_text(path).splitlines()
    return next((line[len(start) :] for line in lines if line.startswith(start)), None)


def _read_memory(name: str) -> Optional[int]:
    size = _find_line("/proc/meminfo", f"{name}:")
    return None if size is None else int(size.split()[0]) * 1024


def _read_pressure_s(name: str) -> Optional[float]:
    line = _find_line(f"/proc/pressure/{name}", "some")
    return None if line is None else int(line.rpartition("total=")[2]) / 1e6
