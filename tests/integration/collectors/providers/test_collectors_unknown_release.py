"""Unknown releases are refused with a suggestion before anything is created."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEST = """\
[test]
name = "mine"
payload = "read.py"

[matrix]
branches = [1.0]
root = ["6.38.00", "6.41.00"]
"""
PROBLEM = "no wheel of ROOT 6.41.00; did you mean '6.40.00'?"


def treehammer(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "TREEHAMMER_DATA_DIR": str(folder / "data"),
        "TREEHAMMER_CACHE_DIR": str(folder / "cache"),
        "COLUMNS": "400",
    }
    command = [str(Path(sys.executable).parent / "treehammer"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "arguments, where",
    [
        (("tests", "check", "mine"), "test.toml:7: matrix.root: "),
        (("submit", "mine"), "test.toml:7: matrix.root: "),
        (("submit", "ttree-read", "-P", "root=6.40.00,6.41.00", "--wait"), "-P root: "),
    ],
)
def test_unknown_release_is_refused(tmp_path: Path, arguments: tuple[str, ...], where: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "test.toml").write_text(TEST)
    (tmp_path / "mine" / "read.py").write_text("")
    done = treehammer(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert where + PROBLEM in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data" / "results.db").exists()
    assert not (tmp_path / "cache" / "software").exists()
