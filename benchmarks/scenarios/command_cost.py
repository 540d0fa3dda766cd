"""Start-up of commands: CPU seconds of help, and of ``status`` of a small campaign."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.figures import RatioFigure, write_results
from benchmarks.harness.program_runs import TREEHAMMER, account_command

REPEATS = 7
#: Command -> limit of its CPU seconds.
LIMITS = {"--help": 0.15, "serve --help": 0.2, "submit --help": 0.2, "status": 0.6}
TEST_TOML = """
[test]
name = "small"
payload = "run.sh"
repeats = 5
rounds = 1
wall_limit_s = 60
[matrix]
style = ["short", "long"]
"""
PAYLOAD = """#!/bin/sh
echo '{"format": 1, "values": {}, "extras": {}, "failure": null}' > "$TREEHAMMER_RESULT"
"""


def measure(_: argparse.Namespace) -> list[RatioFigure]:
    """Run a campaign of ten jobs that do nothing, then time each command on it."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="treehammer-") as name:
        base: list[str | Path] = [TREEHAMMER, "--data-dir", Path(name) / "data"]
        test = Path(name) / "small"
        test.mkdir()
        (test / "test.toml").write_text(TEST_TOML)
        (test / "run.sh").write_text(PAYLOAD)
        (test / "run.sh").chmod(0o755)
        subprocess.run([*base, "submit", test, "--wait"], check=True, stdout=subprocess.DEVNULL)
        for command in [*LIMITS] * REPEATS:
            account = account_command([*base, *command.split()])
            rows.append({"command": command, **asdict(account), "load": os.getloadavg()[0]})
    write_results("commands", rows)
    return [
        RatioFigure(
            f"CPU s, {command}",
            median(row["cpu_s"] for row in rows if row["command"] == command),
            pairs=REPEATS,
            upper_bound=limit,
        )
        for command, limit in LIMITS.items()
    ]
