"""Workspaces: names, paths, state and lock."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from treehammer import config
from treehammer.config import Settings
from treehammer.errors import ConfigError, TestbedError
from treehammer.testbed import workspace
from treehammer.testbed.components.secure_storage import DOOR_NAMES, SecureStorage
from treehammer.testbed.workspace import RunningDaemon, WorkspaceState


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


@pytest.mark.parametrize("sites", [0, -1, 27])
def test_invalid_site_counts_are_refused(settings: Settings, sites: int) -> None:
    with pytest.raises(ConfigError, match="1 to 26 sites"):
        workspace.define_workspace("one", sites, settings)


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


def test_state_round_trip(tmp_path: Path) -> None:
    state = WorkspaceState(
        sites=("A", "B"),
        second_pool=True,
        releases=("6.40.00",),
        ready=True,
        daemons=(RunningDaemon("x", 1, 2, 3.5, 15),),
    )
    workspace.write_state(tmp_path, state)
    assert workspace.read_state(tmp_path) == state


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"sites": [], "daemons": [{}]}', "\x00", '"x"'])
def test_unreadable_state_is_none(tmp_path: Path, text: str) -> None:
    assert workspace.read_state(tmp_path) is None
    (tmp_path / "state.json").write_text(text)
    assert workspace.read_state(tmp_path) is None


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


def test_lock_lives_as_long_as_testbed(settings: Settings) -> None:
    box = workspace.define_workspace("one", 1, settings)
    with workspace.lock_workspace(box, lambda: None):
        box.folder.mkdir()
    assert box.folder.with_suffix(".lock").exists()
    with workspace.lock_workspace(box, lambda: None):
        box.folder.rmdir()
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
