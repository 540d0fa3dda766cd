"""Users of a testbed's Rucio, with Rucio's own client."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import replica_files
from click.testing import CliRunner
from grid_fixtures import Grid

from treehammer import config
from treehammer.cli import cli
from treehammer.datasets.rucio.rucio_conversions import ReplicationRule
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.errors import TreehammerError
from treehammer.testbed.components import rucio_server
from treehammer.testbed.components.xrootd_storage import programs_folder
from treehammer.testbed.debian_packages import SUITE


@contextmanager
def rucio_client(grid: Grid, account: str) -> Iterator[Any]:
    """Open Rucio's client for an account of the testbed; only one at a time."""
    programs = programs_folder(SUITE, grid.box.cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUCIO_CONFIG", str(rucio_server.rucio_client_config(grid.box, account)))
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        # Their import reads the configuration.
        from rucio.client.client import Client
        from rucio.common.config import clean_cached_config

        clean_cached_config()
        try:
            yield Client()
        finally:
            clean_cached_config()


def list_pfns(client: Any, did: dict[str, str], site: str, scheme: str = "root") -> dict[str, str]:
    """Map the name of each file to its PFN at a site."""
    replicas = client.list_replicas([did], schemes=[scheme], rse_expression=f"site={site}")
    return {row["name"]: pfn for row in replicas for pfn in row["pfns"]}


class RucioUser:
    """User with a Rucio account and a separate machine; ``way`` is how it authenticates."""

    def __init__(
        self, grid: Grid, home: Path, account: str, way: str = rucio_server.PASSWORD, **environ: str
    ) -> None:
        self.grid = grid
        self.home = home
        self.datasets = home / "cache" / "datasets"
        self.environ = {
            "TREEHAMMER_CACHE_DIR": str(home / "cache"),
            "TREEHAMMER_DATA_DIR": str(home / "data"),
            "TREEHAMMER_SITES_FILE": str(grid.sites_file),
            "TREEHAMMER_RUCIO_CONFIG": str(
                rucio_server.rucio_client_config(grid.box, account, way)
            ),
            "TREEHAMMER_RUCIO_SCOPE": "hctest",
            **environ,
        }

    @property
    def settings(self) -> config.Settings:
        """Load the settings that the user's commands see."""
        return config.load_settings({}, environ=self.environ)

    def invoke_datasets(self, *words: str) -> tuple[int, str, str]:
        """Run a command of ``datasets``; see :meth:`invoke_command`."""
        return self.invoke_command("datasets", *words)

    def invoke_command(self, *words: str) -> tuple[int, str, str]:
        """Run a command; return exit code, output and messages."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RUCIO_CONFIG", "")  # restores the variable set by the command
            done = CliRunner().invoke(cli, words, env=self.environ, standalone_mode=False)
        if isinstance(done.exception, TreehammerError):
            return done.exception.exit_code, done.stdout, str(done.exception)
        if done.exception is not None:
            raise done.exception
        return int(done.return_value or 0), done.stdout, done.stderr

    def run_datasets(self, *words: str, code: int = 0) -> str:
        """Run a command of ``datasets`` with an expected exit code; return its output."""
        exit_code, printed, errors = self.invoke_datasets(*words)
        assert exit_code == code, printed + errors
        return printed

    def refused_message(self, *words: str, code: int) -> str:
        """Run a command of ``datasets`` that fails; return its message."""
        exit_code, printed, errors = self.invoke_datasets(*words)
        assert exit_code == code, printed + errors
        return errors

    def datasets_rows(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """Run a command of ``datasets`` with JSON output; return its rows."""
        rows: list[dict[str, Any]] = json.loads(self.run_datasets(*words, "--json", code=code))
        return rows

    def replica_states(
        self, name: str, *words: str, where: str = "treehammer=True", code: int = 0
    ) -> dict[str, str]:
        """Map each site to the worst state of the dataset's replicas there."""
        rows = self.datasets_rows("verify", name, "--sites", where, *words, code=code)
        worst_states: dict[str, str] = {}
        for row in rows:
            if worst_states.get(row["site"], "good") == "good":
                worst_states[row["site"]] = row["state"]
        return worst_states

    def path_on_disk(self, site: str, name: str) -> Path:
        """Return the path of a file's replica on a site's disk."""
        did = {"scope": "hctest", "name": name}
        with rucio_client(self.grid, "hammer") as client:
            (pfn,) = list_pfns(client, did, site).values()
        return replica_files.path_behind_url(self.grid.box, site, pfn)

    def own_rules(self, name: str) -> tuple[ReplicationRule, ...]:
        """List the user's own rules for a dataset."""
        rucio = RucioCatalogue(self.settings).rucio
        return rucio.list_rules(rucio.names.dataset(name))


@pytest.fixture(scope="module")
def hammer(rucio_grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> RucioUser:
    """The ordinary account of the tests."""
    return RucioUser(rucio_grid, tmp_path_factory.mktemp("hammer"), "hammer")


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the variable that Rucio's clients in this process set."""
    monkeypatch.setenv("RUCIO_CONFIG", "")
