"""Complete local campaigns with real worker, queue and commands, interrupted ones, and metrics."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import uproot
from local_user import TEST_TOML, LocalUser

from treehammer import config
from treehammer.errors import BatchError, ConfigError, NothingToDoError


def test_campaign_is_planned_measured_and_collected(local_user: LocalUser) -> None:
    planned = local_user.invoke_command("submit", str(local_user.test), "--dry-run", "--json")
    assert json.loads(planned.stdout)[0]["measurements"] == 4
    rendered = local_user.invoke_command("render", str(local_user.test), "-S", "repeats=1").output
    assert tomllib.loads(rendered)["labels"]["site"] == "local"
    assert not local_user.settings.data_dir.exists()

    assert local_user.invoke_command("submit", str(local_user.test)).exception is None
    campaign = local_user.last_campaign_id()
    assert campaign in local_user.run_in_new_process("status")
    local_user.run_in_new_process("status", campaign[:6], "--follow", "--json")
    rows = local_user.read_measurements()
    assert len(rows) == 4, "status stores new measurements"
    assert {(row["failure_class"], row["slot"]) for row in rows} == {(None, "slot1")}
    spans = sorted((row["started_us"], row["ended_us"]) for row in rows)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "one at a time"  # type: ignore[operator]
    assert "0 new measurements, 4 known" in local_user.run_in_new_process("collect", campaign)
    (site,) = json.loads(local_user.run_in_new_process("status", "last", "--json"))
    assert (site["site"], site["done"], site["failures"]) == ("local", 2, {})


def test_reading_results_collects_them_first(local_user: LocalUser) -> None:
    (local_user.test / "test.toml").write_text(TEST_TOML.replace("repeats = 2", "repeats = 1"))
    local_user.invoke_command("submit", str(local_user.test))
    bench = local_user.queue
    spool, records = local_user.settings.spool_dir, "jobs/*/*/*/records/*.json"
    bench.wait_for_status(lambda: bool(list(spool.glob(records))))
    campaign = local_user.last_campaign_id()
    result = local_user.invoke_command("summary", "--metrics", "answer", "--json", "--no-collect")
    assert isinstance(result.exception, NothingToDoError)
    assert f"Collect them: treehammer collect {campaign}" in result.stderr
    bench.wait_for_status(lambda: len(list(spool.glob(records))) == 2)
    done = local_user.invoke_command("summary", "--metrics", "answer", "--json")
    assert json.loads(done.stdout), done.output
    assert len(local_user.read_measurements()) == 2
    local_user.run_in_new_process("status", campaign, "--follow")
    assert (
        "wait" not in local_user.invoke_command("compare", "one", "two", "--axis", "style").stderr
    )


@pytest.mark.parametrize(
    ("script", "failures", "line", "words"),
    [
        (
            "echo 'no such [bold]cake' >&2\nexit 3",
            {"payload": 2},
            "2 × payload at local: ",
            "no such [bold]cake",
        ),
        (
            """echo '{"format": 1, "values": {"events_read": 9, "events_total": 3}, "extras": {}}' """
            '> "$TREEHAMMER_RESULT"',
            {"implausible": 2},
            "2 × implausible at local: events_read is 9 of 3",
            "events_read is 9",
        ),
    ],
    ids=["payload", "implausible"],
)
def test_failures_are_printed_once_and_set_the_exit_code(
    local_user: LocalUser, script: str, failures: dict[str, int], line: str, words: str
) -> None:
    (local_user.test / "run.sh").write_text(f"#!/bin/sh\n{script}\n")
    waited = local_user.invoke_command("submit", str(local_user.test), "--wait", "-S", "repeats=1")
    assert waited.return_value == 1
    (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
    assert site["failures"] == failures
    for printed in (waited.output, local_user.invoke_command("status", "last").output):
        assert printed.count(words) == 1
        assert line in printed
    if "payload" in failures:
        _, _, rest = waited.output.partition("  log: ")
        assert words in Path(rest.splitlines()[0]).read_text()


def test_rendered_folder_runs_by_itself(local_user: LocalUser) -> None:
    output = local_user.folder / "rendered"
    assert (
        local_user.invoke_command("render", str(local_user.test), "-o", str(output)).exception
        is None
    )
    inputs = output / "1" / "inputs"
    command = [sys.executable, "worker.pyz", "run", "job.json"]
    subprocess.run(command, cwd=inputs, check=True, capture_output=True)
    assert len(list((inputs / "records").glob("*.json"))) == 2
    error = local_user.invoke_command("render", str(local_user.test), "-o", str(output)).exception
    assert isinstance(error, ConfigError)


def test_refused_submission_is_stored_with_lost_jobs(
    local_user: LocalUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BatchError("no room")

    monkeypatch.setattr("treehammer.submit.batch.local_batch.LocalBatch._add", refuse)
    assert isinstance(
        local_user.invoke_command("submit", str(local_user.test)).exception, BatchError
    )
    (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
    assert (site["lost"], site["missing"]) == (2, {"submission": 4})


METRICS_TEST = """
[test]
name = "arrays"
payload = "read.py"
dataset = "numbers"
tree = "events"
repeats = 1
rounds = 1
wall_limit_s = 300
[matrix]
root = ["none"]
branches = ["x"]
[metrics.events_above]
unit = "1"
[metrics.sum_above]
unit = "1"
"""

UPROOT = """\
from treehammer_kit import columns


def analyze(events, report):
    above = events.x[events.x >= 750]
    report("events_above", len(above))
    report("sum_above", sum(above.tolist()))


columns.run_uproot(analyze)
"""


def test_own_metrics_of_an_analysis_are_stored(local_user: LocalUser) -> None:
    """A user adds a file, reads it with uproot, and gets the payload's own figures."""
    settings = local_user.settings
    settings.cache_dir.mkdir(exist_ok=True)
    settings.software_dir.symlink_to(config.load_settings().software_dir)
    path = local_user.folder / "numbers.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"x": "float64"}).extend({"x": np.arange(1000.0)})
    added = local_user.invoke_command("datasets", "add", "numbers", str(path), "--tree", "events")
    assert added.exception is None, added.output
    (local_user.test / "test.toml").write_text(METRICS_TEST)
    (local_user.test / "read.py").write_text(UPROOT)
    output = local_user.invoke_command("submit", str(local_user.test), "--wait").output
    assert "failed" not in output.splitlines()[-1], output
    metrics = "events_above,sum_above,events_read"
    summary = local_user.invoke_command("summary", "--metrics", metrics, "--csv")
    (row,) = [line for line in summary.stdout.splitlines() if "250" in line]
    values = [float(text) for text in row.split(",") if text.replace(".", "").isdigit()]
    assert {250.0, 218625.0, 1000.0} <= set(values), summary.output
