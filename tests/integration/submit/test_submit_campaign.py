"""A whole campaign on this machine: real worker, real queue, the verbs as a user types them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from spool_bench import Bench
from submit_desk import TEST, Desk

from treehammer import config
from treehammer.errors import BatchError, ConfigError, DatasetError, NothingToDo
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.submit import campaign as campaigns
from treehammer.submit.batch import processes


def test_submit_and_wait(desk: Desk) -> None:
    result = desk.types("submit", str(desk.test), "--wait")
    assert result.exception is None, result.output
    assert result.return_value == 0
    assert "4 of 4 measurements are over" in result.output
    rows = desk.rows()
    assert len(rows) == 4
    assert {row["failure_class"] for row in rows} == {None}
    assert {row["slot"] for row in rows} == {"slot1"}
    spans = sorted((row["started_us"], row["ended_us"]) for row in rows)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "one at a time"  # type: ignore[operator]


def test_status_and_collect_from_another_shell(desk: Desk) -> None:
    assert desk.types("submit", str(desk.test)).exception is None
    campaign = desk.submitted_id()
    assert campaign in desk.elsewhere("status")
    desk.elsewhere("status", campaign[:6], "--follow", "--json")
    assert len(desk.rows()) == 4, "who looks takes in what was measured"
    assert "0 new measurements, 4 known" in desk.elsewhere("collect", campaign)
    (site,) = json.loads(desk.elsewhere("status", "last", "--json"))
    assert (site["site"], site["done"], site["failures"]) == ("local", 2, {})


def test_killed_submitter_and_killed_runner_lose_and_double_nothing(desk: Desk) -> None:
    desk.payload(0.7)
    code = (
        "from treehammer import config; from treehammer.submit import campaign;"
        f"s = config.load({{'data_dir': {str(desk.settings.data_dir)!r}}}, environ={{}});"
        f"campaign.run(campaign.Request({str(desk.test)!r}), s)"
    )
    submitter = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    bench = Bench(desk.folder / "bench", spool=desk.settings.spool_dir)
    bench.wait(lambda: any(bench.processes(b) for b in bench.batch_ids()))
    os.killpg(submitter.pid, signal.SIGKILL)
    submitter.wait()
    bench.kill_runner()
    desk.elsewhere("status", "last", "--follow")
    desk.elsewhere("collect")
    rows = desk.rows()
    assert len(rows) == 4
    assert {row["failure_class"] for row in rows} == {None}


def test_a_killed_worker_leaves_nothing_of_its_payload_behind(desk: Desk) -> None:
    escaped = desk.folder / "escaped"
    (desk.test / "run.sh").write_text(
        f"#!/bin/sh\nsetsid sleep 600 &\necho $! > {escaped}.new\nmv {escaped}.new {escaped}\nwait\n"
    )
    desk.types("submit", str(desk.test), "-S", "repeats=1")
    bench = Bench(desk.folder / "bench", spool=desk.settings.spool_dir)
    bench.wait(escaped.exists)
    payload = int(escaped.read_text())
    (worker,) = desk.settings.spool_dir.glob("jobs/*/*/attempt-1.pid")
    os.kill(int(worker.read_text().split()[0]), signal.SIGKILL)
    bench.wait(lambda: not processes.start_time(payload))
    desk.types("cancel", "last")


def test_cancel_keeps_what_was_measured(desk: Desk) -> None:
    desk.payload(0.1)
    (desk.test / "test.toml").write_text(TEST.replace('"two"]', '"two"]\nnap = ["0.1", "500"]'))
    desk.types("submit", str(desk.test))
    bench = Bench(desk.folder / "bench", spool=desk.settings.spool_dir)
    bench.wait(lambda: len(list(desk.settings.spool_dir.glob("jobs/*/*/*/records/*.json"))) >= 2)
    result = desk.types("cancel", "last")
    assert result.exception is None, result.output
    assert not any(bench.processes(b) for b in bench.batch_ids())
    rows = desk.rows()
    assert [r["failure_class"] for r in rows].count(None) >= 2
    (site,) = json.loads(desk.types("status", "last", "--json").stdout)
    assert site["running"] == site["queued"] == 0
    assert site["cancelled"] >= 1
    assert isinstance(desk.types("cancel", "last").exception, NothingToDo)


def test_failures_are_counted_by_class_and_change_the_exit_code(desk: Desk) -> None:
    (desk.test / "run.sh").write_text("#!/bin/sh\nexit 3\n")
    result = desk.types("submit", str(desk.test), "--wait", "-S", "repeats=1")
    assert result.return_value == 1
    (site,) = json.loads(desk.types("status", "last", "--json").stdout)
    assert site["failures"] == {"payload": 2}


def test_what_went_wrong_is_told_once_with_the_payloads_own_words(desk: Desk) -> None:
    (desk.test / "run.sh").write_text("#!/bin/sh\necho 'no such [bold]cake' >&2\nexit 3\n")
    waited = desk.types("submit", str(desk.test), "--wait", "-S", "repeats=1").output
    later = desk.types("status", "last").output
    for printed in (waited, later):
        assert printed.count("no such [bold]cake") == 1
        assert "2 × payload at local: " in printed


def test_what_cannot_be_true_is_told_and_changes_the_exit_code(desk: Desk) -> None:
    result = """{"format": 1, "values": {"events_read": 9, "events_total": 3}, "extras": {}}"""
    (desk.test / "run.sh").write_text(f"#!/bin/sh\necho '{result}' > \"$TREEHAMMER_RESULT\"\n")
    waited = desk.types("submit", str(desk.test), "--wait", "-S", "repeats=1")
    assert waited.return_value == 1
    assert "2 × implausible at local: events_read is 9 of 3" in waited.output
    (site,) = json.loads(desk.types("status", "last", "--json").stdout)
    assert site["failures"] == {"implausible": 2}


def test_dry_run_and_render_leave_nothing(desk: Desk) -> None:
    result = desk.types("submit", str(desk.test), "--dry-run", "--json")
    assert result.exception is None
    assert json.loads(result.stdout)[0]["measurements"] == 4
    printed = desk.types("render", str(desk.test), "-S", "repeats=1").output
    assert tomllib.loads(printed)["labels"]["site"] == "local"
    assert not desk.settings.data_dir.exists()


def test_rendered_folder_runs_by_itself(desk: Desk) -> None:
    output = desk.folder / "rendered"
    assert desk.types("render", str(desk.test), "-o", str(output)).exception is None
    inputs = output / "1" / "inputs"
    command = [sys.executable, "worker.pyz", "run", "job.json"]
    subprocess.run(command, cwd=inputs, check=True, capture_output=True)
    assert len(list((inputs / "records").glob("*.json"))) == 2
    again = desk.types("render", str(desk.test), "-o", str(output)).exception
    assert isinstance(again, ConfigError)


def test_refused_submission_is_remembered_and_its_jobs_are_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BatchError("no room")

    monkeypatch.setattr("treehammer.submit.batch.spool.Spool.add", refuse)
    assert isinstance(desk.types("submit", str(desk.test)).exception, BatchError)
    (site,) = json.loads(desk.types("status", "last", "--json").stdout)
    assert (site["lost"], site["failures"]) == (2, {"submission": 2})


def test_wrong_requests_are_one_clear_error(desk: Desk) -> None:
    unknown = desk.types("submit", str(desk.test), "--sites", "locale").exception
    assert isinstance(unknown, ConfigError)
    assert "Did you mean 'local'?" in str(unknown)
    assert isinstance(desk.types("submit", str(desk.test), "--sites", ",").exception, ConfigError)
    assert isinstance(desk.types("status").exception, NothingToDo)
    assert isinstance(desk.types("collect").exception, NothingToDo)
    text = TEST.replace("repeats = 2", 'dataset = "reference-small"')
    (desk.test / "test.toml").write_text(text)
    missing = desk.types("submit", str(desk.test), "--dry-run").exception
    assert isinstance(missing, DatasetError)
    assert "treehammer datasets make reference-small" in str(missing)


@pytest.mark.root
def test_two_releases_read_the_shipped_test(tmp_path: Path) -> None:
    settings = config.load({"data_dir": tmp_path / "data"})
    axes = {"branches": ("0.02",), "cache_mb": ("30",)}
    request = campaigns.Request("ttree-read", axes, {"rounds": "1"})
    campaign, progress = campaigns.run(request, settings)
    assert progress.finished
    assert not any(progress.failures.values())
    with Store.open(settings.database) as store:
        columns = ("kind", "root_version", "value_checksum", "loop_unzipped_bytes", "plausible")
        rows = list(store.measurements(Selection((campaign.id,)), columns))
    timed = [row for row in rows if row["kind"] == "timed"]
    checksums = [row for row in rows if row["kind"] == "checksum"]
    assert {row["root_version"] for row in timed} == {"6.38.00", "6.40.00"}
    assert len({row["loop_unzipped_bytes"] for row in timed}) == 1
    assert len(checksums) == 2
    assert len({row["value_checksum"] for row in checksums}) == 1
    assert all(row["plausible"] for row in rows)
