"""Standard streams that are closed or on a full disk."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DRAWING = "from treehammer.web.figures import drawing as d; d.draw_chart = lambda **_: bytes(5000); d.main()"
COMMANDS = [f"-m treehammer {words}" for words in ("datasets list --json", "config show", "--help")]


@pytest.mark.parametrize("program", [*COMMANDS, shlex.join(["-c", DRAWING, "png"])])
@pytest.mark.parametrize(("flags", "output"), [("", "/dev/full"), ("", "output"), ("-u", "output")])
def test_full_disk_is_no_verdict(program: str, flags: str, output: str, tmp_path: Path) -> None:
    command = f"ulimit -f 1; echo '{{}}' | {sys.executable} -B {flags} {program} > {output}"
    done = subprocess.run(["bash", "-c", command], stderr=-1, cwd=tmp_path, check=False)
    result = (done.returncode, b"treehammer: output or " in done.stderr)
    assert result == ((4, True) if program in COMMANDS else (1, False))
    assert b"Exception ignored" not in done.stderr


def test_terminal_that_has_gone_is_no_verdict() -> None:
    main, terminal = os.openpty()
    os.close(main)
    command = [sys.executable, "-m", "treehammer", "config", "show"]
    done = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, check=False)
    os.close(terminal)
    assert (done.returncode, done.stderr[:22]) == (4, b"treehammer: output or ")


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
