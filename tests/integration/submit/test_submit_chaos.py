"""Local campaigns under random failures; run chaos_rounds directly for more seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helper_paths import helper_environment


@pytest.mark.parametrize("failure, seed", [("kill", 10), ("interrupt", 1)])
def test_every_job_is_accounted_for(failure: str, seed: int, tmp_path: Path) -> None:
    # In another process, because it forks the user's commands.
    done = subprocess.run(
        [sys.executable, "-m", "chaos_rounds", failure, str(tmp_path), str(seed)],
        env=helper_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
