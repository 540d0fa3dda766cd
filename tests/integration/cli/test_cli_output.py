"""Standard streams that are closed or on a full disk."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("words", [["datasets", "list", "--json"], ["config", "show"], ["--help"]])
def test_full_disk_of_the_output_is_no_verdict(words: list[str]) -> None:
    command = [sys.executable, "-m", "treehammer", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr[:22]) == (4, "treehammer: output or ")
    assert "Exception ignored" not in done.stderr


def test_reader_that_has_gone_is_no_verdict() -> None:
    command = shlex.join([sys.executable, "-m", "treehammer", "--help"])
    script = f"{command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_failure(closed: str) -> None:
    command = shlex.join([sys.executable, "-m", "treehammer", "config", "show"])
    done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
