"""Limits of this process and its children: control groups, and busy neighbors on its core."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
#: Ends by itself if it is not ended earlier.
_BUSY_LOOP = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"


class NoLimitError(Exception):
    """This machine does not allow the limit."""


@contextmanager
def prefer_cpu() -> Iterator[None]:
    """Take CPUs before other work on this machine, where the user may do that."""
    settings = (("cpu", "cpu.shares", "262144"), ("", "cpu.weight", "10000"))
    with ExitStack() as stack:
        try:
            stack.enter_context(_join_cgroup("preferred", settings))
        except NoLimitError as error:
            print(f"  other work on this machine can disturb: {error}")
        yield


@contextmanager
def limit_cpu(cpus: float) -> Iterator[None]:
    """Allow only so many CPUs.

    Raises:
        NoLimitError: no control group can be created.
    """
    quota = int(cpus * 100_000)
    settings = (("cpu", "cpu.cfs_quota_us", str(quota)), ("", "cpu.max", f"{quota} 100000"))
    with _join_cgroup("cpu-limit", settings):
        yield


@contextmanager
def limit_disk(path: Path, bytes_per_s: int) -> Iterator[None]:
    """Slow down reads of the disk that holds a file.

    Raises:
        NoLimitError: no control group can be created.
    """
    disk = path.stat().st_dev
    name = f"{os.major(disk)}:{os.minor(disk)}"
    settings = (
        ("blkio", "blkio.throttle.read_bps_device", f"{name} {bytes_per_s}"),
        ("", "io.max", f"{name} rbps={bytes_per_s}"),
    )
    with _join_cgroup("disk-limit", settings):
        yield


@contextmanager
def share_core(neighbors: int) -> Iterator[None]:
    """Stay on one core together with busy processes."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY_LOOP]) for _ in range(neighbors)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def _join_cgroup(name: str, settings: Sequence[tuple[str, str, str]]) -> Iterator[None]:
    """Move this process into a new group below its own; ``settings`` are alternatives.

    Args:
        name: part of the group's name.
        settings: controller ('' is version 2), file and value.
    """
    groups = _find_own_groups()
    for controller, file, value in settings:
        own = groups.get(controller)
        if own is None or not (own / "cgroup.procs").exists():
            continue
        group = own / f"treehammer-{name}-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not _write_setting(group / file, value):
                continue
            (group / "cgroup.procs").write_text(str(os.getpid()))
            try:
                yield
            finally:
                (own / "cgroup.procs").write_text(str(os.getpid()))
            return
        finally:
            group.rmdir()
    raise NoLimitError(f"no control group with {' or '.join(file for _, file, _ in settings)}")


def _write_setting(path: Path, value: str) -> bool:
    if not path.exists():
        return False
    try:
        path.write_text(value)
    except OSError:
        return False
    return True


def _find_own_groups() -> dict[str, Path]:
    found = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = _CGROUPS / controller / path.lstrip("/")
    return found
