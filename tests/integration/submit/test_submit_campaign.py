"""Complete local campaigns with real worker, queue and commands, and metrics of payloads."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import uproot
from local_user import TEST_TOML, LocalUser
from spool_harness import SpoolHarness, is_alive

from treehammer import config
from treehammer.errors import BatchError, ConfigError, DatasetError, NothingToDoError


def test_submit_and_wait(local_user: LocalUser) -> None:
    result = local_user.invoke_command("submit", str(local_user.test), "--wait")
    assert result.exception is None, result.output
    assert result.return_value == 0
    assert "4 of 4 measured" in result.output
    rows = local_user.read_measurements()
    assert len(rows) == 4
    assert {row["failure_class"] for row in rows} == {None}
    assert {row["slot"] for row in rows} == {"slot1"}
    spans = sorted((row["started_us"], row["ended_us"]) for row in rows)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "one at a time"  # type: ignore[operator]


def test_status_and_collect_from_another_shell(local_user: LocalUser) -> None:
    assert local_user.invoke_command("submit", str(local_user.test)).exception is None
    campaign = local_user.last_campaign_id()
    assert campaign in local_user.run_in_new_process("status")
    local_user.run_in_new_process("status", campaign[:6], "--follow", "--json")
    assert len(local_user.read_measurements()) == 4, "status stores new measurements"
    assert "0 new measurements, 4 known" in local_user.run_in_new_process("collect", campaign)
    (site,) = json.loads(local_user.run_in_new_process("status", "last", "--json"))
    assert (site["site"], site["done"], site["failures"]) == ("local", 2, {})


def test_reading_results_collects_them_first(local_user: LocalUser) -> None:
    (local_user.test / "test.toml").write_text(TEST_TOML.replace("repeats = 2", "repeats = 1"))
    local_user.invoke_command("submit", str(local_user.test))
    bench = SpoolHarness(local_user.folder / "bench", spool=local_user.settings.spool_dir)
    spool, records = local_user.settings.spool_dir, "jobs/*/*/*/records/*.json"
    bench.wait_for_status(lambda: bool(list(spool.glob(records))))
    campaign = local_user.last_campaign_id()
    waiting = local_user.invoke_command("summary", "--metrics", "answer", "--json", "--no-collect")
    assert isinstance(waiting.exception, NothingToDoError)
    assert f"Collect them: treehammer collect {campaign}" in waiting.stderr
    bench.wait_for_status(lambda: len(list(spool.glob(records))) == 2)
    done = local_user.invoke_command("summary", "--metrics", "answer", "--json")
    assert json.loads(done.stdout), done.output
    assert len(local_user.read_measurements()) == 2
    local_user.run_in_new_process("status", campaign, "--follow")
    assert (
        "wait" not in local_user.invoke_command("compare", "one", "two", "--axis", "style").stderr
    )


def test_killed_submitter_and_runner_lose_nothing(local_user: LocalUser) -> None:
    local_user.write_payload(0.7)
    code = (
        "from treehammer import config; from treehammer.submit.campaigns import campaign_request, submission;"
        f"s = config.load_settings({{'data_dir': {str(local_user.settings.data_dir)!r}}}, environ={{}});"
        f"submission.run_campaign(campaign_request.CampaignRequest({str(local_user.test)!r}), s)"
    )
    submitter = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    bench = SpoolHarness(local_user.folder / "bench", spool=local_user.settings.spool_dir)
    bench.wait_for_status(lambda: any(bench.job_pids(b) for b in bench.batch_ids()))
    os.killpg(submitter.pid, signal.SIGKILL)
    submitter.wait()
    bench.kill_runner()
    local_user.run_in_new_process("status", "last", "--follow")
    local_user.run_in_new_process("collect")
    rows = local_user.read_measurements()
    assert len(rows) == 4
    assert {row["failure_class"] for row in rows} == {None}


def test_payload_of_killed_worker_is_killed(local_user: LocalUser) -> None:
    escaped = local_user.folder / "escaped"
    (local_user.test / "run.sh").write_text(
        f"#!/bin/sh\nsetsid sleep 600 &\necho $! > {escaped}.new\nmv {escaped}.new {escaped}\nwait\n"
    )
    local_user.invoke_command("submit", str(local_user.test), "-S", "repeats=1")
    bench = SpoolHarness(local_user.folder / "bench", spool=local_user.settings.spool_dir)
    bench.wait_for_status(escaped.exists)
    payload = int(escaped.read_text())
    (worker,) = bench.worker_pids()
    os.kill(worker, signal.SIGKILL)
    bench.wait_for_status(lambda: not is_alive(payload))
    local_user.invoke_command("cancel", "last")


def test_cancel_keeps_measurements(local_user: LocalUser) -> None:
    local_user.write_payload(0.1)
    (local_user.test / "test.toml").write_text(
        TEST_TOML.replace('"two"]', '"two"]\nnap = ["0.1", "500"]')
    )
    local_user.invoke_command("submit", str(local_user.test))
    bench = SpoolHarness(local_user.folder / "bench", spool=local_user.settings.spool_dir)
    bench.wait_for_status(
        lambda: len(list(local_user.settings.spool_dir.glob("jobs/*/*/*/records/*.json"))) >= 2
    )
    result = local_user.invoke_command("cancel", "last")
    assert result.exception is None, result.output
    assert not any(bench.job_pids(b) for b in bench.batch_ids())
    rows = local_user.read_measurements()
    assert [r["failure_class"] for r in rows].count(None) >= 2
    (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
    assert site["running"] == site["queued"] == 0
    assert site["cancelled"] >= 1
    assert isinstance(local_user.invoke_command("cancel", "last").exception, NothingToDoError)


def test_failures_set_exit_code(local_user: LocalUser) -> None:
    (local_user.test / "run.sh").write_text("#!/bin/sh\nexit 3\n")
    result = local_user.invoke_command("submit", str(local_user.test), "--wait", "-S", "repeats=1")
    assert result.return_value == 1
    (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
    assert site["failures"] == {"payload": 2}


def test_payload_output_is_printed_once(local_user: LocalUser) -> None:
    (local_user.test / "run.sh").write_text("#!/bin/sh\necho 'no such [bold]cake' >&2\nexit 3\n")
    waited = local_user.invoke_command(
        "submit", str(local_user.test), "--wait", "-S", "repeats=1"
    ).output
    later = local_user.invoke_command("status", "last").output
    for printed in (waited, later):
        assert printed.count("no such [bold]cake") == 1
        assert "2 × payload at local: " in printed


def test_implausible_measurements_set_exit_code(local_user: LocalUser) -> None:
    result = """{"format": 1, "values": {"events_read": 9, "events_total": 3}, "extras": {}}"""
    (local_user.test / "run.sh").write_text(
        f"#!/bin/sh\necho '{result}' > \"$TREEHAMMER_RESULT\"\n"
    )
    waited = local_user.invoke_command("submit", str(local_user.test), "--wait", "-S", "repeats=1")
    assert waited.return_value == 1
    assert "2 × implausible at local: events_read is 9 of 3" in waited.output
    (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
    assert site["failures"] == {"implausible": 2}


def test_dry_run_and_render_leave_nothing(local_user: LocalUser) -> None:
    result = local_user.invoke_command("submit", str(local_user.test), "--dry-run", "--json")
    assert result.exception is None
    assert json.loads(result.stdout)[0]["measurements"] == 4
    printed = local_user.invoke_command("render", str(local_user.test), "-S", "repeats=1").output
    assert tomllib.loads(printed)["labels"]["site"] == "local"
    assert not local_user.settings.data_dir.exists()


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
    again = local_user.invoke_command("render", str(local_user.test), "-o", str(output)).exception
    assert isinstance(again, ConfigError)


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


def test_invalid_requests_are_rejected(local_user: LocalUser) -> None:
    unknown = local_user.invoke_command(
        "submit", str(local_user.test), "--sites", "locale"
    ).exception
    assert isinstance(unknown, ConfigError)
    assert "Did you mean 'local'?" in str(unknown)
    assert isinstance(
        local_user.invoke_command("submit", str(local_user.test), "--sites", ",").exception,
        ConfigError,
    )
    assert isinstance(local_user.invoke_command("status").exception, NothingToDoError)
    assert isinstance(local_user.invoke_command("collect").exception, NothingToDoError)
    text = TEST_TOML.replace("repeats = 2", 'dataset = "reference-small"')
    (local_user.test / "test.toml").write_text(text)
    missing = local_user.invoke_command("submit", str(local_user.test), "--dry-run").exception
    assert isinstance(missing, DatasetError)
    assert "treehammer datasets make reference-small" in str(missing)


METRICS_TEST = """
[test]
name = "frames"
payload = "read.py"
dataset = "numbers"
tree = "events"
repeats = 1
rounds = 1
wall_limit_s = 300
[matrix]
root = ["{root}"]
branches = ["x"]
[metrics.events_above]
unit = "1"
[metrics.sum_above]
unit = "1"
"""

FRAME = """\
from treehammer_kit import columns

columns.run_dataframe('''
void analyze(treehammer::FramePass &pass)
{
   auto above = pass.frame.Filter([](double x) { return x >= 750; }, {"x"});
   pass.Book(above.Histo1D<double>({"x", "", 10, 0, 1000}, "x"));
   pass.Report("events_above", above.Count());
   pass.Report("sum_above", above.Sum<double>("x"));
}
''')
"""

WRONG_FRAME = """\
from treehammer_kit import columns

columns.run_dataframe('''
void analyze(treehammer::FramePass &pass)
{
   auto above = pass.frame.Fliter([](double x) { return x >= 750; }, {"x"});
   pass.Book(above.Histo1D<double>({"x", "", 10, 0, 1000}, "x"));
   this is no C++;
}
''')
"""

UPROOT = """\
from treehammer_kit import columns


def analyze(events, report):
    above = events.x[events.x >= 750]
    report("events_above", len(above))
    report("sum_above", sum(above.tolist()))


columns.run_uproot(analyze)
"""


@pytest.fixture
def analyst(local_user: LocalUser, tmp_path: Path) -> LocalUser:
    """A user with a dataset of the numbers 0 to 999, and the shared releases of ROOT."""
    local_user.settings.cache_dir.mkdir(exist_ok=True)
    local_user.settings.software_dir.symlink_to(config.load_settings().software_dir)
    path = tmp_path / "numbers.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"x": "float64"}).extend({"x": np.arange(1000.0)})
    added = local_user.invoke_command("datasets", "add", "numbers", str(path), "--tree", "events")
    assert added.exception is None, added.output
    return local_user


def submit(analyst: LocalUser, payload: str, root: str) -> str:
    (analyst.test / "test.toml").write_text(METRICS_TEST.format(root=root))
    (analyst.test / "read.py").write_text(payload)
    done = analyst.invoke_command("submit", str(analyst.test), "--wait")
    return done.output


@pytest.mark.parametrize(("payload", "root"), [(FRAME, "6.40.00"), (UPROOT, "none")])
def test_own_metrics_of_analyses_are_stored(analyst: LocalUser, payload: str, root: str) -> None:
    output = submit(analyst, payload, root)
    assert "failed" not in output.splitlines()[-1], output
    summary = analyst.invoke_command(
        "summary", "--campaign", "last", "--metrics", "events_above,sum_above,events_read", "--csv"
    )
    (row,) = [line for line in summary.stdout.splitlines() if "250" in line]
    values = [float(text) for text in row.split(",") if text.replace(".", "").isdigit()]
    assert {250.0, 218625.0, 1000.0} <= set(values), summary.output


def test_first_compile_error_is_shown_with_its_line_and_the_log(analyst: LocalUser) -> None:
    output = submit(analyst, WRONG_FRAME, "6.40.00")
    assert "read.py:6:" in output
    assert "no member named 'Fliter'" in output
    (path,) = {line.removeprefix("  log: ") for line in output.splitlines() if "  log: " in line}
    assert "Fliter" in Path(path).read_text()
