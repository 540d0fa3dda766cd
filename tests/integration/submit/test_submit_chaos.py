"""Seeded trouble for a whole campaign; by hand with more seeds: see the helper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[2] / "helpers"
INHERITED = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []


@pytest.mark.parametrize("what, seed", [("kill", 10), ("interrupt", 1)])
def test_every_job_is_accounted_for(what: str, seed: int, tmp_path: Path) -> None:
    # In a process of its own, as it forks the user's commands from itself.
    done = subprocess.run(
        [sys.executable, str(HELPERS / "chaos.py"), what, str(tmp_path), str(seed)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *INHERITED])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
