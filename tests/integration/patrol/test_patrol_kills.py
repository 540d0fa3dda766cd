"""Patrol killed at random moments: no campaign lost or doubled, budgets kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KILLS_PROGRAM = Path(__file__).parents[2] / "helpers" / "common" / "patrol_kills.py"


def test_killed_patrol_starts_each_campaign_once(tmp_path: Path) -> None:
    command = [sys.executable, str(KILLS_PROGRAM), str(tmp_path)]
    done = subprocess.run(
        [*command, "--kills", "6", "--seed", "19"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["kills"], report["lost"], report["doubled"]) == (6, 0, 0)
    assert (report["over_budget"], report["unsettled"]) == (0, 0)
    assert report["starts"] == report["campaigns"] > 0
