"""Runs of the packed worker as in a batch system, with the kernel's accounting from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from treehammer.collectors.record.measurement_record import Measurement

REPOSITORY = Path(__file__).resolve().parents[2]
TREEHAMMER = Path(sys.executable).with_name("treehammer")
CGROUP2_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@dataclass
class WorkerRun:
    """One run of the worker.

    Attributes:
        own_cpu_s: CPU of the worker's thread without its children.
        peak_bytes: peak resident size of the worker itself.
        group_cpu_s: CPU of the worker and its descendants from the control group; None if no group
            could be created.
        records: in the order of execution.
    """

    own_cpu_s: float
    peak_bytes: int
    group_cpu_s: float | None
    records: list[Measurement] = field(default_factory=list)

    def sum_values(self, name: str) -> float:
        """Sum a value over the records."""
        return sum(float(str(record.values[name])) for record in self.records)


def render_jobs(
    test: str, folder: Path, *options: str, sites_file: Path | None = None
) -> list[Path]:
    """Render a test below ``folder``; return the inputs of its timed jobs."""
    rendered = folder / "jobs"
    sites: list[str | Path] = ["--sites-file", sites_file] if sites_file else []
    command: list[str | Path] = [TREEHAMMER, *sites, "render", test, "-o", rendered, *options]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    jobs = sorted(rendered.glob("*/inputs"), key=lambda path: int(path.parent.name))
    return [path for path in jobs if '"kind": "timed"' in (path / "job.json").read_text()]


def run_worker(inputs: Path, *, own_cgroup: bool = True) -> WorkerRun:
    """Run the worker on a rendered job.

    Args:
        inputs: folder of the job's inputs.
        own_cgroup: account for it in a new control group, outside of the caller's.

    Raises:
        RuntimeError: an execution failed or is implausible; with the worker's table.
    """
    group = _create_cgroup() if own_cgroup else None

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text("0")

    log = inputs / "worker.log"
    with log.open("w") as stream:
        worker = subprocess.Popen(
            [sys.executable, "worker.pyz", "run", "job.json"],
            cwd=inputs,
            stdout=stream,
            stderr=stream,
            preexec_fn=enter,  # noqa: PLW1509 - one thread
        )
        peak = 0
        while os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            peak = max(peak, _peak_bytes(worker.pid))
            time.sleep(0.1)
    # Ended but not reaped: its accounting is still available.
    own = int(Path(f"/proc/{worker.pid}/schedstat").read_text().split()[0]) / 1e9
    code = worker.wait()
    paths = sorted((inputs / "records").glob("*.json"))
    ran = WorkerRun(
        own, peak, _remove_cgroup(group), [Measurement.from_json(p.read_text()) for p in paths]
    )
    if code or not all(record.values["plausible"] for record in ran.records):
        raise RuntimeError(log.read_text())
    ran.records.sort(key=lambda record: int(str(record.values["started_us"])))
    return ran


def account_command(command: Sequence[str | Path]) -> tuple[float, float, int]:
    """Return wall and CPU seconds of a command with children, and peak bytes of the largest."""
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _create_cgroup() -> Path | None:
    """Create a control group, whose CPU account does not depend on who reaps a process."""
    for base in CGROUP2_MOUNTS:
        group = base / f"treehammer-bench-{os.getpid()}"
        if (base / "cgroup.procs").exists():
            try:
                group.mkdir(exist_ok=True)
            except OSError:
                continue
            if (group / "cpu.stat").exists():
                return group
    return None


def _remove_cgroup(group: Path | None) -> float | None:
    if group is None:
        return None
    fields = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    group.rmdir()
    return int(fields["usage_usec"]) / 1e6
