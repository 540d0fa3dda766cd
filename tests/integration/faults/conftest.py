"""A user of the command line, and services on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import command_forker
import pytest
from postgres_fixture import SharedPostgresServer
from spool_harness import SpoolHarness

from treehammer import config
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.testbed.credentials import CertificateAuthority

FAILURE_COLUMNS = (
    "failure_class",
    "failure_kind",
    "failure_phase",
    "failure_message",
    "failure_transient",
)


class CommandLineUser:
    """A user with separate settings, who shares only this machine's ROOT releases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        flags = {"cache_dir": folder / "cache", "data_dir": folder / "data", "local_slots": 2}
        self.settings = config.load_settings(flags, environ={}, folder=folder)
        self.settings.cache_dir.mkdir()
        shared = config.load_settings().software_dir
        shared.mkdir(parents=True, exist_ok=True)
        self.settings.software_dir.symlink_to(shared)

    def run_command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``treehammer`` with these arguments."""
        options = ["--cache-dir", str(self.settings.cache_dir), "--local-slots", "2"]
        options += ["--data-dir", str(self.settings.data_dir)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TREEHAMMER_", "GIT_"))}
        return command_forker.run_command(
            [*options, *words],
            env={**clean, "COLUMNS": "200", "GIT_CEILING_DIRECTORIES": str(self.folder)},
            folder=self.folder,
        )

    def run_json_command(self, *words: str, exit_code: int = 0) -> Any:
        """Run a command with ``--json`` and parse its output."""
        done = self.run_command(*words, "--json")
        assert done.returncode == exit_code, done.stderr
        return json.loads(done.stdout)

    def list_campaigns(self) -> list[CampaignRow]:
        """List the campaigns in the database."""
        with Store.open(self.settings.database) as store:
            return store.campaigns()

    def read_measurements(self, *columns: str) -> list[Mapping[str, Any]]:
        """Read these columns and those of the failure of every measurement."""
        with Store.open(self.settings.database) as store:
            return list(store.measurements(Selection(), (*columns, *FAILURE_COLUMNS)))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLineUser]:
    """One user for all tests of a module, which share a campaign."""
    user = CommandLineUser(tmp_path_factory.mktemp("user"))
    yield user
    bench = SpoolHarness(user.folder / "bench", spool=user.settings.spool_dir)
    bench.kill_runner()
    assert not any(bench.end_processes().values()), "processes are left"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'results.db'}"
        return
    server: SharedPostgresServer = request.getfixturevalue("postgresql")
    name = server.make_database()
    yield server.url(name)
    server.drop_database(name)
