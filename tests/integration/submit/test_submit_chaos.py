"""Seeded trouble for a whole campaign; by hand with more seeds: see the helper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helper_paths import helper_environment


@pytest.mark.parametrize("trouble, seed", [("kill", 10), ("interrupt", 1)])
def test_every_job_is_accounted_for(trouble: str, seed: int, tmp_path: Path) -> None:
    # In a process of its own, as it forks the user's commands from itself.
    done = subprocess.run(
        [sys.executable, "-m", "chaos_rounds", trouble, str(tmp_path), str(seed)],
        env=helper_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
