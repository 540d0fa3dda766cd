"""Copy programs, whole files by many clients and namespace calls at real servers."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from load_generator import SIZE, Row, failures, find_area, find_url, list_area, total
from polling import wait_until

from treehammer.testbed.components.xrootd_storage import XrootdStorage

DOORS = ["root", "http", "file"]


@pytest.fixture
def programs(storage: XrootdStorage) -> dict[str, str]:
    """Environment that finds the testbed's xrdcp."""
    return {"PATH": f"{storage.program_path('xrdcp').parent}:{os.environ['PATH']}"}


def count_done(rows: list[Row]) -> Counter[str]:
    """Count successful operations by name."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row["operation"]] += row["done"]
    return found


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("direction", ["write", "read"])
def test_programs_copy_files_and_compare_their_content(
    start: Any,
    storage: XrootdStorage,
    programs: dict[str, str],
    door: str,
    direction: str,
    tmp_path: Path,
) -> None:
    area = find_area(storage, door, tmp_path)
    axes = {"clients": 2, "files": 2, "size_mb": 5.0, "direction": direction, "client": "protocol"}
    running = start("stream", "", 60, programs, area, **axes)
    rows = running.read_rows()
    assert {row["operation"] for row in rows} == {"copy"}
    assert failures(rows) == set()
    assert (total(rows, "done"), total(rows, "bytes")) == (4, 20_000_000)
    figures = running.read_figures()
    assert figures.get("files_wrong") == (0 if direction == "write" else None)
    assert (figures["files_removed"], figures["files_left"]) == (4, 0)
    assert figures["client_cpu_s"] > 0
    assert list_area(storage, door, tmp_path) == []
    assert list(running.folder.glob("copies-*")) == []


@pytest.mark.parametrize("door", DOORS)
def test_failures_of_programs_are_classed(
    start: Any, storage: XrootdStorage, programs: dict[str, str], door: str
) -> None:
    url = find_url(storage, door)
    axes = {"clients": 1, "files": 2, "direction": "read", "client": "protocol"}
    rows = start("stream", url, 60, programs, adler32="00000001", **axes).read_rows()
    assert failures(rows) == {"wrong-data"}
    rows = start("stream", f"{url}-not", 60, programs, **axes).read_rows()
    assert failures(rows) == {"not-found"}
    if door != "file":
        dead = f"{url.partition('://')[0]}://127.0.0.1:9//data"
        env = {**programs, "XRD_CONNECTIONWINDOW": "1", "XRD_CONNECTIONRETRY": "1"}
        rows = start("stream", dead, 60, env, **axes).read_rows()
        assert failures(rows) == {"refused"}


def test_wrong_content_at_the_storage_is_counted(start: Any, tmp_path: Path) -> None:
    axes = {"clients": 2, "files": 2, "size_mb": 0.1, "direction": "write"}
    command = "sh -c 'head -c 100000 /dev/zero > $1' copy {target} {source}"
    running = start("stream", "", 60, None, f"{tmp_path}/area", client=command, **axes)
    assert total(running.read_rows(), "done") == 4
    assert running.read_figures()["files_wrong"] == 4


def test_missing_program_fails_in_setup(start: Any, tmp_path: Path) -> None:
    running = start(
        "stream", "", 60, None, f"{tmp_path}/area", client="no-such-cp {source} {target}"
    )
    assert running.process.wait(120) == 1
    failure = json.loads((running.folder / "result.json").read_text())["failure"]
    assert (failure["failure_class"], failure["phase"]) == ("software-setup", "setup")
    assert "this node has no program 'no-such-cp'" in failure["message"]


def test_stopped_load_ends_its_programs(start: Any, storage: XrootdStorage) -> None:
    url = find_url(storage, "file")
    command = "sh -c 'echo $$ > ../pid.new; mv ../pid.new ../pid; exec sleep 1000' {source}"
    axes = {"clients": 1, "direction": "read", "client": command.replace("../", "")}
    running = start("stream", url, 300, **axes)
    pid = running.folder / "pid"
    wait_until(pid.exists, "no program was started")
    running.process.terminate()
    assert failures(running.read_rows()) == {"unfinished"}
    assert not Path("/proc", pid.read_text().strip()).exists()


@pytest.mark.parametrize("door", DOORS)
def test_many_clients_read_one_file(start: Any, storage: XrootdStorage, door: str) -> None:
    adler32 = f"{zlib.adler32(Path(find_url(storage, 'file')).read_bytes()):08x}"
    axes = {"clients": 10, "files": 2, "direction": "read", "source": "one", "connect": True}
    running = start("stream", find_url(storage, door), 60, adler32=adler32, **axes)
    rows = running.read_rows()
    assert failures(rows) == set()
    if door != "file" and not any(row["generator_limited"] for row in rows):
        assert running.read_figures()["connect_p50_s"] > 0
    connected = {} if door == "file" else {"connect": 10}
    assert count_done(rows) == {**connected, "read_file": 20}
    assert total(rows, "bytes") == 20 * SIZE


@pytest.mark.parametrize("door", DOORS)
def test_many_folders_are_made_and_removed(
    start: Any, storage: XrootdStorage, door: str, tmp_path: Path
) -> None:
    area = find_area(storage, door, tmp_path)
    axes = {"clients": 3, "files": 4, "size_mb": 0.01, "direction": "read", "folders": "many"}
    running = start("stream", "", 60, None, area, **axes)
    assert count_done(running.read_rows()) == {"read_file": 12}
    assert running.read_figures()["files_removed"] == 12
    assert list_area(storage, door, tmp_path) == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("folders", ["one", "many"])
def test_calls_of_transfers_are_timed_by_themselves(
    start: Any, storage: XrootdStorage, door: str, folders: str, tmp_path: Path
) -> None:
    area = find_area(storage, door, tmp_path)
    running = start("pretend", "", 60, None, area, clients=5, transfers=4, folders=folders)
    rows = running.read_rows()
    assert failures(rows) == set()
    calls = {"mkdir", "create", "stat", "locate", "open", "close", "delete", "rmdir"}
    lacking = {"root": set(), "http": {"locate", "close"}, "file": {"locate"}}[door]
    expected = dict.fromkeys(calls - lacking, 20)
    assert count_done(rows) == {**expected, **({} if door == "file" else {"connect": 5})}
    figures = running.read_figures()
    assert figures["total_s"] > 0
    if not figures["limited_steps"]:
        assert 0 < figures["open_p50_s"] <= figures["open_p99_s"] <= figures["total_s"]
        assert figures["failed_share"] == 0
    assert list_area(storage, door, tmp_path) == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("axes", [{"files": 10}, {"rate_hz": 10}])
def test_deleted_files_are_watched_until_they_are_gone(
    start: Any, storage: XrootdStorage, door: str, axes: dict[str, Any], tmp_path: Path
) -> None:
    area = find_area(storage, door, tmp_path)
    running = start("delete", "", 1, None, area, clients=2, poll_s=0.05, **axes)
    rows = running.read_rows()
    found = count_done(rows)
    assert found["delete"] == 20
    # At a rate, the last deletions may be answered after the end of the load.
    assert found["vanish"] == 20 if "files" in axes else 0 < found["vanish"] <= 20
    if not any(row["generator_limited"] for row in rows):
        assert running.read_figures()["vanish_p99_s"] > 0
