"""Workspaces: names, paths, state, lock and commands; mount scripts, and profiles of sites."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from captured_runs import run_captured
from click.testing import CliRunner, Result
from polling import wait_until

from treehammer import config
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, TestbedError, TreehammerError
from treehammer.testbed import cli, lifecycle, process_search, workspace
from treehammer.testbed.component import DaemonSpec, VisibleFolder
from treehammer.testbed.components.secure_storage import DOOR_NAMES, SecureStorage
from treehammer.testbed.lifecycle import RunningDaemon, WorkspaceState
from treehammer.testbed.mount_namespace import render_mount_script, topmost_inaccessible_parent
from treehammer.testbed.network import (
    LONG_DISTANCE,
    MEDIUM_DISTANCE,
    NO_DISTANCE,
    NetworkDistance,
    build_profiles,
)
from treehammer.testbed.process_search import start_time


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(workspace, "MAX_PATH_BYTES", 500)
    monkeypatch.setenv("TREEHAMMER_TESTBEDS", str(tmp_path / "boxes"))
    flags = {"cache_dir": tmp_path / "cache", "data_dir": tmp_path / "data"}
    return config.load_settings(flags, environ={}, folder=tmp_path)


@pytest.mark.parametrize("name", ["", "Two", "a b", "../x", "-a", "a" * 21, "a.b", "a\n"])
def test_invalid_names_are_refused(settings: Settings, name: str) -> None:
    with pytest.raises(ConfigError, match="invalid name of a testbed"):
        workspace.define_workspace(name, 1, settings)


def test_long_paths_are_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREEHAMMER_TESTBEDS", "/tmp/" + "long" * 20)
    monkeypatch.setattr(workspace, "MAX_PATH_BYTES", 60)
    with pytest.raises(ConfigError, match="60 bytes that sockets allow"):
        workspace.define_workspace("one", 1, settings)


def test_user_folders_are_hidden(settings: Settings) -> None:
    box = workspace.define_workspace("one", 2, settings)
    assert box.sites == ("SITE_A", "SITE_B")
    assert {settings.cache_dir, settings.data_dir, Path(__file__).parents[3]} <= set(
        box.hidden_folders
    )
    assert not box.folder.exists()


def test_folder_of_other_user_is_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "boxes").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TestbedError, match="belongs to another user"):
        workspace.define_workspace("one", 1, settings)
    monkeypatch.setattr(os, "getuid", lambda: 1234567)
    monkeypatch.setenv("TREEHAMMER_TESTBEDS", str(tmp_path / "elsewhere"))
    with pytest.raises(TestbedError, match="belongs to another user"):
        workspace.define_workspace("one", 1, settings)


def run_daemon(name: str, pid: int, start_ticks: int) -> RunningDaemon:
    spec = DaemonSpec(name, ("sleep", "1"), {"PATH": "/bin"}, Path("/tmp"), stop_signal=2)
    return RunningDaemon(spec, pid, start_ticks, 0.0)


def test_state_round_trip(tmp_path: Path) -> None:
    channels = cli.parse_channels(["stable=bookworm", "testing=sid"])
    assert channels == (("stable", "bookworm"), ("testing", "sid"))
    state = WorkspaceState(
        sites=("A", "B"), channels=channels, ready=True, daemons=(run_daemon("x", 1, 2),)
    )
    lifecycle.write_state(tmp_path, state)
    assert lifecycle.read_state(tmp_path) == state


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"sites": [], "daemons": [{}]}', "\x00", '"x"'])
def test_unreadable_state_is_none(tmp_path: Path, text: str) -> None:
    assert lifecycle.read_state(tmp_path) is None
    (tmp_path / "state.json").write_text(text)
    assert lifecycle.read_state(tmp_path) is None


def test_lock_admits_one_process(settings: Settings) -> None:
    box = workspace.define_workspace("one", 1, settings)
    order: list[str] = []
    inside, waits = threading.Event(), threading.Event()

    def first() -> None:
        with workspace.lock_workspace(box, lambda: None):
            inside.set()
            assert waits.wait(60)
            time.sleep(0.05)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    with workspace.lock_workspace(box, waits.set):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert not box.folder.parent.exists()


def test_secure_doors_permit_loads_that_read(settings: Settings) -> None:
    """The area for writing is not exported by these servers."""
    box = workspace.define_workspace("one", 2, settings, secure_sites=1)
    secure = SecureStorage(box, ["SITE_A"])
    secure.ports = {"SITE_A": {name: number for number, name in enumerate(DOOR_NAMES, start=1)}}
    assert tuple(door.name for door in secure.doors("SITE_A")) == DOOR_NAMES
    for door in secure.doors("SITE_A"):
        assert door.load is not None
        assert door.load.clients >= 800
        assert door.writable_url == ""


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
    daemons = (run_daemon("one", me, start_time(me)), run_daemon("two", me, 1))
    lifecycle.write_state(folder, WorkspaceState(sites=("SITE_A",), daemons=daemons))


@pytest.mark.parametrize(
    "command", ["status", "down", "logs", "upgrade SITE_A root sid", "restart SITE_A root"]
)
def test_commands_without_testbed(boxes: Path, command: str) -> None:
    result = run(boxes, *command.split())
    assert isinstance(result.exception, TreehammerError)
    assert result.exception.exit_code == ExitCode.NOTHING
    assert not boxes.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("SITE_A cache", "name either settings or --reset"),
        ("SITE_A cache pfc.blocksize=1m --reset", "name either settings or --reset"),
        ("SITE_A cache pfc.blocksize", "'pfc.blocksize' is not NAME=VALUE"),
        ("SITE_A cache blocksize=1m", "'blocksize=1m' is not NAME=VALUE"),
        ("SITE_A cache pfc.ram=1g pfc.ram=2g", "pfc.ram is given twice"),
    ],
)
def test_settings_of_servers_are_checked(boxes: Path, words: str, expected: str) -> None:
    result = run(boxes, "configure", *words.split())
    assert isinstance(result.exception, ConfigError)
    assert expected in str(result.exception)


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


def test_parents_are_mounted_before_children() -> None:
    outer = VisibleFolder(Path("/data/x"), Path("/tmp"), writable=True)
    inner = VisibleFolder(Path("/tmp/box/site"), Path("/tmp/box/site"))
    lines = render_mount_script([Path("/tmp/box")], [inner, outer], ["true"]).splitlines()
    assert lines.index("mount --rbind /mnt/data/x /tmp") < lines.index("mkdir -p /tmp/box/site")
    assert "mount -o remount,bind,ro /tmp/box/site" in lines
    assert "mount -o remount,bind,ro /tmp" not in lines
    assert lines[-1] == "exec true"


def test_nested_hidden_folders_are_hidden_once() -> None:
    text = render_mount_script([Path("/a/b"), Path("/a"), Path("/a")], [], ["true"])
    assert text.count("tmpfs") == 1


def test_mount_script_quotes_names() -> None:
    odd = Path("/a b/$(touch x)/'q'")
    text = render_mount_script([odd], [VisibleFolder(odd / "c", odd / "c")], ["true"])
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
    output = run_captured(
        ["sh"],
        input="mount() { printf '%s\\n' \"$@\"; }; umount() { :; }; mkdir() { :; }\n" + text,
        check=True,
    ).stdout
    assert str(odd) in output.splitlines()
    assert f"/mnt{odd}/c" in output.splitlines()


@pytest.mark.parametrize(
    "used, stage", [("/home/me", "/mnt"), ("/mnt/cache", "/media"), ("/mnt", "/media")]
)
def test_mount_point_is_unused_folder(used: str, stage: str) -> None:
    assert f"umount -l {stage}\n" in render_mount_script([Path(used)], [], ["true"])


def test_missing_mount_point_is_reported() -> None:
    with pytest.raises(TestbedError, match="no folder is available"):
        render_mount_script([Path("/")], [], ["true"])


def test_topmost_inaccessible_parent(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private = tmp_path / "private"
    (private / "more").mkdir(parents=True)
    private.chmod(0o700)
    (private / "more").chmod(0o700)
    above = topmost_inaccessible_parent(private)
    assert topmost_inaccessible_parent(private / "more" / "x") == (above or private)


@pytest.mark.parametrize(
    "count, labels",
    [
        (1, ["near http two-doors"]),
        (2, ["near http two-doors", "distant"]),
        (3, ["near two-doors", "near http", "distant http"]),
        (4, ["near two-doors", "near http", "medium", "distant http"]),
        (6, ["near two-doors", "near http", "near", "near", "medium", "distant http"]),
    ],
)
def test_profiles_by_number_of_sites(count: int, labels: list[str]) -> None:
    profiles = build_profiles([f"SITE_{number}" for number in range(count)])
    assert [" ".join(profile.labels) for profile in profiles] == labels


def test_labels_match_distance() -> None:
    profiles = build_profiles(["A", "B", "C", "D", "E"])
    assert [profile.distance for profile in profiles] == [
        None,
        None,
        None,
        MEDIUM_DISTANCE,
        LONG_DISTANCE,
    ]


def test_distance_without_limit_has_no_rate() -> None:
    assert str(NetworkDistance(20, 1000)) == "20 ms, 1000 Mbit/s"
    assert str(NO_DISTANCE) == "0 ms, no limit"


OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from treehammer.testbed import workspace
folder = Path(sys.argv[1])
folder.mkdir()
watch = workspace.watch_owner(folder, os.getpid())
mark = {**os.environ, workspace.ENVIRONMENT_MARK: str(folder)}
child = "sleep 600 & env -i sleep 600 & wait"
server = subprocess.Popen(["sh", "-c", child], env=mark, start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def test_testbed_ends_with_its_killed_owner(tmp_path: Path) -> None:
    folder = tmp_path / "box"
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == "ready\n"
            # The watch, the server, and its children, one of them without the mark.
            wait_until(lambda: len(process_search.find_processes(folder)) == 4, "all have started")
        finally:
            owner.kill()
    wait_until(lambda: not process_search.find_processes(folder), "all processes end", 60)
    assert not folder.exists()


def test_down_outlasts_process_that_still_writes(settings: Settings) -> None:
    box = workspace.define_workspace("one", 1, settings)
    box.folder.mkdir(parents=True)
    # Without the mark, as a program that begins while the process that starts it is killed.
    writer = ["timeout", "2", "sh", "-c", 'while :; do : > "$0/$((n+=1))"; done', str(box.folder)]
    with subprocess.Popen(writer, stderr=subprocess.DEVNULL):
        wait_until(lambda: len(list(box.folder.iterdir())) > 500, "it writes")
        assert lifecycle.take_down(box, print)
    assert not box.folder.exists()


def test_servers_that_tests_start_end_with_the_run() -> None:
    watched = Path(os.environ[workspace.ENVIRONMENT_MARK])
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as server:
        try:  # the environment of a process appears shortly after its start
            wait_until(lambda: server.pid in process_search.find_processes(watched), "it is seen")
        finally:
            server.kill()


def test_process_that_has_ended_owns_no_testbed(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(TestbedError, match="No such process"):
        workspace.watch_owner(tmp_path, process.pid)
