"""A running patrol receives a signal to stop."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.patrol_report import fetch_report

PATROL_TOML = """
[entries.never]
test = "ttree-read"
sites = ["local"]
every = "1h"
quiet_hours = ["00:00-12:00", "12:00-00:00"]
"""


def test_sigterm_ends_a_patrol_and_its_lease(tmp_path: Path) -> None:
    (tmp_path / "patrol.toml").write_text(PATROL_TOML)
    treehammer = [sys.executable, "-m", "treehammer", "--data-dir", str(tmp_path), "patrol"]
    command = [*treehammer, "run", "patrol.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as patrol:
        assert patrol.stderr
        for line in patrol.stderr:
            if line.rstrip().endswith("leads"):
                break
        once = subprocess.run(
            [*command, "--once"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (once.returncode, "another patrol uses" in once.stderr) == (3, True)
        with ResultsReader.open(f"sqlite:///{tmp_path / 'results.db'}") as reader:
            assert fetch_report(reader).has_leader
        patrol.send_signal(signal.SIGTERM)
        assert "patrol ends" in patrol.stderr.read()
    assert patrol.returncode == 0
    with ResultsReader.open(f"sqlite:///{tmp_path / 'results.db'}") as reader:
        report = fetch_report(reader)
    assert not report.has_leader
    assert (report.entries[0].entry.note, report.entries[0].entry.next_us) == ("quiet hours", None)
