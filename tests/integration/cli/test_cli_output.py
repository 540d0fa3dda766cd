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


@pytest.mark.parametrize("words", ["config show", "--help"])
def test_reader_that_has_gone_is_no_verdict(words: str) -> None:
    script = f"{sys.executable} -m treehammer {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("lack", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "env -u HOME"])
def test_process_needs_no_streams_and_no_home(lack: str) -> None:
    program = "import pwd; pwd.getpwuid = {}.pop; from treehammer import __main__ as m; m.main()"
    command = shlex.join([sys.executable, "-c", program, "config", "show"])
    done = subprocess.run(f"{lack} {command}", shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
