"""Commands of ``treehammer testbed`` without a running testbed."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from treehammer import config
from treehammer.errors import ExitCode, TreehammerError
from treehammer.submit.batch.local_jobs import start_time
from treehammer.testbed import cli, workspace
from treehammer.testbed.workspace import RunningDaemon, WorkspaceState


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workspace, "MAX_PATH_BYTES", 500)
    monkeypatch.setenv("TREEHAMMER_TESTBEDS", str(tmp_path / "boxes"))
    return tmp_path / "boxes"


def run(boxes: Path, *words: str) -> Result:
    settings = config.load_settings(
        {"cache_dir": boxes.parent / "cache", "data_dir": boxes.parent / "data"}, environ={}
    )
    return CliRunner().invoke(cli.testbed, words, obj=settings)


def remembered(boxes: Path) -> None:
    me = os.getpid()
    folder = boxes / "testbed"
    for name in ("logs", "condor/log", "condor/sites/SITE_A/log"):
        (folder / name).mkdir(parents=True)
    (folder / "logs/one.log").write_text("first\nsecond\nthird\n")
    (folder / "condor/log/SchedLog").write_text("a schedd's\n")
    (folder / "condor/sites/SITE_A/log/StartLog").write_text("a startd's\n")
    daemons = (
        RunningDaemon("one", me, start_time(me), 0.0, 15),
        RunningDaemon("two", me, 1, 0.0, 15),
    )
    workspace.write_state(folder, WorkspaceState(sites=("SITE_A",), daemons=daemons))


@pytest.mark.parametrize(
    "command", ["status", "down", "logs", "upgrade SITE_A root sid", "restart SITE_A root"]
)
def test_commands_without_testbed(boxes: Path, command: str) -> None:
    result = run(boxes, *command.split())
    assert isinstance(result.exception, TreehammerError)
    assert result.exception.exit_code == ExitCode.NOTHING
    assert not boxes.exists()


def test_channels_are_part_of_the_state(boxes: Path) -> None:
    channels = (("stable", "bookworm"), ("testing", "sid"))
    assert cli.parse_channels(["stable=bookworm", "testing=sid"]) == [*channels]
    (boxes / "testbed").mkdir(parents=True)
    state = WorkspaceState(sites=("SITE_A",), channels=channels)
    workspace.write_state(boxes / "testbed", state)
    assert workspace.read_state(boxes / "testbed") == state


def test_status_lists_running_daemons(boxes: Path) -> None:
    remembered(boxes)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        result = run(boxes, "status", "--json")
        port = listening.getsockname()[1]
    rows = {row["daemon"]: row for row in json.loads(result.stdout)}
    assert rows["one"]["state"] == "running"
    assert port in rows["one"]["ports"]
    assert rows["one"]["pid"] == os.getpid()
    assert rows["one"]["since"] == "1970-01-01 00:00:00+00:00"
    assert rows["two"]["state"] == "ended"
    assert rows["two"]["ports"] == []


def test_status_reports_testbed_is_down(boxes: Path) -> None:
    remembered(boxes)
    assert "testbed testbed is down" in run(boxes, "status").stderr


def test_logs_print_last_lines(boxes: Path) -> None:
    remembered(boxes)
    assert run(boxes, "logs", "one", "--lines", "2").stdout.splitlines()[1:] == ["second", "third"]
    all_of_them = run(boxes, "logs").stdout
    for title in ("== one: ", "== condor-SchedLog: ", "== condor-SITE_A-StartLog: "):
        assert title in all_of_them


def test_unknown_log_is_refused(boxes: Path) -> None:
    remembered(boxes)
    error = run(boxes, "logs", "condor-ShedLog").exception
    assert isinstance(error, TreehammerError)
    assert "Did you mean 'condor-SchedLog'?" in str(error)
    assert error.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    "words",
    [
        ["--sites", "0"],
        ["--sites", "27"],
        ["--name", "A"],
        ["--xrootd-channel", "sid"],
        ["--xrootd-channel", "http=sid"],
        ["--xrootd-channel", "testing=../x"],
        ["--xrootd-channel", "testing=sid", "--xrootd-channel", "testing=trixie"],
    ],
)
def test_invalid_up_options_are_refused(boxes: Path, words: list[str]) -> None:
    result = run(boxes, "up", *words)
    assert result.exit_code != 0
    assert not boxes.exists()
