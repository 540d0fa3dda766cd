"""Small disks that tests can fill."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from captured_runs import run_captured


class SmallDisk:
    """Small disk with a file that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filler = folder / "filler"

    def fill_disk(self, leave: int = 0) -> None:
        """Fill the disk except for so many bytes."""
        with self.filler.open("ab", buffering=0) as stream:
            while (free := shutil.disk_usage(self.folder).free) > leave:
                stream.write(bytes(min(free - leave, 1_000_000)))

    def free_space(self) -> None:
        """Remove the filling file."""
        self.filler.unlink()


@contextmanager
def mounted_small_disk(folder: Path, size_mb: int) -> Iterator[SmallDisk]:
    """Mount a small disk; skip the test without permission to mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)]
    done = run_captured(mount)
    if done.returncode:
        pytest.skip(f"mounting a small disk needs root: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
