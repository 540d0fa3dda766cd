"""The testbed's real database: TLS, recording and crashes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daemon_faults
import psycopg
import pytest
from click.testing import CliRunner, Result
from grid_fixtures import Grid
from local_user import LocalUser
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store
from treehammer.testbed import cli, lifecycle, mount_namespace, process_search, workspace
from treehammer.testbed.component import Component
from treehammer.testbed.components import database_server, site_list
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.testbed.workspace import Workspace

NAME = f"t{os.getpid()}-db"
#: Seconds for a command of a user.
PATIENCE_S = 60.0


class Brought:
    """A testbed with only a database, started by its command."""

    def __init__(self, box: Workspace, parts: list[Component], output: str) -> None:
        self.box = box
        self.parts = parts
        self.output = output
        self.url = database_server.database_url_file(box).read_text().strip()
        (self.part,) = (part for part in parts if isinstance(part, database_server.DatabaseServer))

    @property
    def password(self) -> str:
        return (
            (database_server.database_url_file(self.box).parent / "passwords")
            .read_text()
            .strip()
            .split(":")[-1]
        )

    @property
    def row(self) -> dict[str, Any]:
        """What ``testbed status`` lists of it."""
        (row,) = json.loads(verb("status", "--name", NAME, "--json").stdout)
        assert isinstance(row, dict)
        return row


def verb(*words: str) -> Result:
    result = CliRunner().invoke(cli.testbed, words, obj=config.load_settings())
    assert result.exception is None, result.output
    return result


@pytest.fixture(scope="module")
def brought() -> Iterator[Brought]:
    box = workspace.define_workspace(NAME, 1, config.load_settings(), database=True)
    parts: list[Component] = [database_server.DatabaseServer(box)]
    try:
        mount_namespace.check_mount_namespaces(box)
        parts[0].install(print)
    except TestbedError as error:
        skip_or_fail(f"no testbed: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_list, "build_components", lambda _: parts)
        try:
            words = ("--name", NAME, "--sites", "1", "--with-database")
            output = verb("up", *words, "--owner", str(os.getpid())).stdout
            yield Brought(box, parts, output)
        finally:
            lifecycle.take_down(box, print)


class User(LocalUser):
    """A user with the environment variable that ``up`` printed."""

    def shell(self, *arguments: str, database: str = "") -> subprocess.CompletedProcess[str]:
        """What a command prints, errors included."""
        return self.begins(*arguments, database=database).communicated()

    def begins(self, *arguments: str, database: str = "") -> Running:
        chosen = {"TREEHAMMER_DATABASE": database} if database else {}
        return Running(
            [sys.executable, "-m", "treehammer", *arguments],
            env=os.environ | {"TREEHAMMER_DATA_DIR": str(self.settings.data_dir)} | chosen,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


class Running(subprocess.Popen[str]):
    """A command that may still run."""

    def communicated(self) -> subprocess.CompletedProcess[str]:
        output, _ = self.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(self.args, self.returncode, output)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def test_up_prints_url_without_password(brought: Brought) -> None:
    (line,) = [line for line in brought.output.splitlines() if "TREEHAMMER_DATABASE" in line]
    _, _, typed = line.partition(": ")
    assert shlex.split(typed) == ["export", f"TREEHAMMER_DATABASE={brought.url}"]
    assert brought.password not in brought.output
    repeated = verb("up", "--name", NAME, "--sites", "1", "--with-database").stdout
    assert "already" in repeated
    assert line in repeated


def test_password_file_is_private(brought: Brought) -> None:
    folder = database_server.database_url_file(brought.box).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "passwords").stat().st_mode) == 0o600
    command_lines = [
        Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in process_search.find_processes(brought.box.folder)
    ]
    assert command_lines
    log = lifecycle.daemon_log_path(brought.box, database_server.DAEMON_NAME).read_bytes()
    assert not [text for text in [*command_lines, log] if brought.password.encode() in text]


def test_database_is_listed_with_one_port(brought: Brought) -> None:
    row = brought.row
    assert row["daemon"] == "postgresql"
    assert row["state"] == "running"
    assert row["ports"] == [brought.part.port]
    user, _ = brought.box.user or (os.getuid(), 0)
    process = Path(f"/proc/{row['pid']}")
    assert process.stat().st_uid == user
    # Its shared memory ends with it, also when it is killed.
    assert (process / "ns/ipc").readlink() != Path("/proc/self/ns/ipc").readlink()
    assert (process / "root/dev/shm").stat().st_dev != Path("/dev/shm").stat().st_dev


def test_driver_verifies_server_over_tls(brought: Brought, tmp_path: Path) -> None:
    with psycopg.connect(brought.url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert cursor.fetchone() == (True, "TLSv1.3")
    other = CertificateAuthority(tmp_path / "other").ca
    right = str(database_server.database_url_file(brought.box).parent / "ca.pem")
    for wrong, why in (
        (brought.url.replace(right, str(other)), "certificate verify failed"),
        (brought.url.replace("verify-full", "disable"), "no encryption"),
        (
            brought.url.replace(database_server.LISTEN_ADDRESS, "localhost"),
            "does not match host name|no password",
        ),
        (brought.url.replace("passwords", "none"), "no password supplied"),
    ):
        with pytest.raises(psycopg.OperationalError, match=why):
            psycopg.connect(wrong)


def test_commits_survive_crash(brought: Brought) -> None:
    with psycopg.connect(brought.url) as connection:
        for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert connection.execute(f"SHOW {name}").fetchone() == ("on",)
        assert connection.execute("SHOW password_encryption").fetchone() == ("scram-sha-256",)


def test_campaign_survives_crash_of_the_database(brought: Brought, user: User) -> None:
    """The server dies at once, with all that it has in memory, in the middle of a campaign."""
    user.write_payload(1)
    submitting = user.begins("submit", str(user.test), "--wait", database=brought.url)
    records = "spool/jobs/*/*/attempt-1/records/*.json"
    Grid.wait_until(lambda: [*user.settings.data_dir.glob(records)], "one has measured")
    with daemon_faults.stop_daemon(
        brought.box, brought.parts, database_server.DAEMON_NAME, signal.SIGKILL
    ):
        assert "does not answer" in user.shell("status", database=brought.url).stdout
        done = submitting.communicated()
        assert done.returncode == 4, done.stdout
        assert "does not answer" in done.stdout or "was lost" in done.stdout
    done = user.shell("status", "last", "--follow", database=brought.url)
    assert done.returncode == 0, done.stdout

    with Store.open(brought.url) as store:
        rows = list(store.measurements(Selection.parse()))
    assert [row["failure_class"] for row in rows] == [None] * 4
    assert len({row["measurement_id"] for row in rows}) == 4
    assert check_database(brought.url)["measurement"] == 4
    assert brought.row["state"] == "running"


def test_database_down_leaves_nothing(brought: Brought) -> None:
    port = brought.part.port
    verb("down", "--name", NAME)
    assert not process_search.find_processes(brought.box.folder)
    assert not brought.box.folder.exists()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((database_server.LISTEN_ADDRESS, port))
