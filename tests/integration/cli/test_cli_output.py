"""The standard output of commands on a full disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_full_disk_of_the_output_is_no_verdict() -> None:
    command = [sys.executable, "-m", "treehammer", "datasets", "list", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr[:22]) == (4, "treehammer: output or ")
