"""Files that only their owner can read, under any umask."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from measurement_factory import make_measurement
from quick_databases import next_revision  # noqa: F401 - a fixture
from repository_code import call_command

from treehammer import __main__, config
from treehammer.sql.core.access_keys import derive_key, load_user_key
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.write.keyring import load_master_keys
from treehammer.sql.write.store import Store
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.text_formatting import no_progress


@pytest.fixture(autouse=True, params=["000", "777"])
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Set the umask after the folder of the test was made."""
    before = os.umask(int(request.param, 8))
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {
        path.name: oct(stat.S_IMODE(path.stat().st_mode))
        for path in folder.iterdir()
        if path.is_file()
    }


def test_database_and_its_log_are_private(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store:
        store.add([make_measurement()])
        private = dict.fromkeys(["results.db", "results.db-wal", "results.db-shm"], "0o600")
        assert modes(tmp_path) == private


def test_copies_of_database_are_private(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    Store.open(url).close()
    copy_database(url, f"sqlite:///{tmp_path / 'other.db'}", bars=no_progress)
    request.getfixturevalue("next_revision")
    upgrade_database(url)
    file_modes = modes(tmp_path)
    assert (len(file_modes), set(file_modes.values())) == (3, {"0o600"})


@pytest.mark.parametrize("umask", ["000"], indirect=True)
def test_nobody_else_reaches_the_spool(tmp_path: Path) -> None:
    """Its jobs run as its owner."""
    LocalBatch(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old").chmod(0o777)
    LocalBatch(tmp_path / "old")
    for name in ("new", "old"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


@pytest.mark.parametrize("umask", ["000"], indirect=True)
def test_commands_let_nobody_else_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--data-dir", str(tmp_path / "data"), "token", "create", "--role", "read", "--name"]
    monkeypatch.setattr(sys, "argv", ["treehammer", *words, "a"])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert not end.value.code
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o755


@pytest.mark.parametrize(("mode", "count"), [(0o644, 1), (0o640, 1), (0o600, 0), (0o400, 0)])
def test_readable_secret_is_warned_of_once(
    mode: int, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = derive_key(b"m" * 32, "0" * 12)
    file = tmp_path / "alice.key"
    file.touch(0o600)
    file.chmod(0o600)
    file.write_text(key.text)
    file.chmod(mode)
    flags = {"service_token_file": file}
    settings = config.load_settings(flags, environ={}, folder=tmp_path)
    for _ in range(2):
        assert load_user_key(settings) == key
    warning = f"other users can read {file}: run chmod 600 {file}"
    assert caplog.text.count(warning) == count


def test_keys_are_private(settings: config.Settings, tmp_path: Path) -> None:
    load_master_keys(settings.master_key_file)
    words = ["create", "--role", "read", "--name", "a", "-o", str(tmp_path / "a.key")]
    call_command("token", settings, *words)
    assert modes(tmp_path) == dict.fromkeys(["service.key", "a.key", "results.db"], "0o600")
