"""Patrols as processes: two at once, stopped, and killed at random moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polling import wait_until
from postgres_fixture import SharedPostgresServer

from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.patrol_report import PatrolReport, fetch_report

TEST_TOML = """
[test]
name = "shell"
payload = "run.sh"
repeats = 1
rounds = 1
[matrix]
style = ["one"]
[metrics.answer]
unit = "1"
"""
PAYLOAD = """#!/bin/sh
echo '{"format": 1, "values": {}, "extras": {"answer": 42}, "failure": null}' > "$TREEHAMMER_RESULT"
"""
#: Seconds for each step; a few on an idle machine.
WAIT_S = 180
PATROL_TOML = """
[entries.clock]
test = "./test"
sites = ["local"]
every = "3s"
in_flight = 20
"""


@contextmanager
def run_patrol(folder: Path, name: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a patrol with a data folder of its own, as on another machine."""
    command = [sys.executable, "-m", "treehammer", "--data-dir", str(folder / name)]
    environment = {**os.environ, "TREEHAMMER_DATABASE": url}
    with (folder / f"{name}.log").open("w") as log:
        patrol = subprocess.Popen(
            [*command, "patrol", "run", "patrol.toml"], cwd=folder, env=environment, stderr=log
        )
        try:
            yield patrol
        finally:
            patrol.kill()
            patrol.wait()


def read_report(url: str) -> PatrolReport:
    with ResultsReader.open(url) as reader:
        return fetch_report(reader)


def test_one_of_two_patrols_leads_and_the_other_takes_over(
    tmp_path: Path,
    postgresql: SharedPostgresServer,
) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test.toml").write_text(TEST_TOML)
    (tmp_path / "test" / "run.sh").write_text(PAYLOAD)
    (tmp_path / "test" / "run.sh").chmod(0o755)
    (tmp_path / "patrol.toml").write_text(PATROL_TOML)
    url = postgresql.url(postgresql.make_store_database())
    with run_patrol(tmp_path, "first", url) as first:
        wait_until(
            lambda: len(read_report(url).starts) >= 2, "the first patrol starts campaigns", WAIT_S
        )
        with run_patrol(tmp_path, "second", url) as second:
            log = tmp_path / "second.log"
            wait_until(
                lambda: "stands by" in log.read_text(), "the second patrol stands by", WAIT_S
            )
            before = read_report(url)
            assert before.lease is not None
            assert before.lease.holder.endswith("first")
            assert {one.holder for one in before.starts} == {before.lease.holder}
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0

            def second_has_started() -> bool:
                return any(one.holder.endswith("second") for one in read_report(url).starts)

            wait_until(second_has_started, "the second patrol takes over", WAIT_S)
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
    starts = Counter(one.occasion for one in read_report(url).starts)
    assert set(starts.values()) == {1}


IDLE_PATROL_TOML = """
[entries.never]
test = "ttree-read"
sites = ["local"]
every = "1h"
quiet_hours = ["00:00-12:00", "12:00-00:00"]
"""


def test_sigterm_ends_a_patrol_and_its_lease(tmp_path: Path) -> None:
    (tmp_path / "patrol.toml").write_text(IDLE_PATROL_TOML)
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
