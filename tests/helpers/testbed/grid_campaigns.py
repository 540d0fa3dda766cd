"""Users of a testbed's sites: cheap campaigns without storage, and real ROOT reads with a results service."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import command_forker
from condor_jobs import pool_from_sites_file
from grid_fixtures import Grid
from local_user import TEST_TOML, LocalUser
from repository_code import REPOSITORY
from service_process import serve_folder

from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.sql.core.measurement_columns import DIMENSIONS
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door, Site
from treehammer.testbed.components import site_list

GRID_TEST_TOML = TEST_TOML.replace("[matrix]", 'memory_limit_mb = 100\n[matrix]\nroot = ["none"]')


class GridUser(LocalUser):
    """User with a shell test, a database and a sites file."""

    def __init__(self, folder: Path, grid: Grid) -> None:
        super().__init__(folder)
        self.grid = grid
        (self.test / "test.toml").write_text(GRID_TEST_TOML)
        self.sites: dict[str, Site] = {
            name: self._site_table(name, requirements=f'TARGET.GLIDEIN_Site == "{name}"')
            for name in grid.box.sites
        }
        self.sites["FAR"] = self._site_table("FAR", grid_resource=grid.grid_resource)
        self.write_sites_file()

    def _site_table(self, name: str, *, requirements: str = "", grid_resource: str = "") -> Site:
        return Site(
            name=name,
            batch=f"htcondor@{pool_from_sites_file(self.grid).name}",
            doors=(
                Door(
                    name="root",
                    protocol="root",
                    prefix=f"root://{name.lower().replace('_', '-')}.invalid:1094//data",
                ),
            ),
            requirements=requirements,
            grid_resource=grid_resource,
        )

    def write_sites_file(self, **changes: Mapping[str, object]) -> None:
        """Write the sites file; ``changes`` are changed fields of sites, by name."""
        for name, values in changes.items():
            self.sites[name] = self.sites[name].replace(**values)
        path = self.folder / "sites.toml"
        sites_file.write_sites_file(self.sites.values(), [pool_from_sites_file(self.grid)], path)
        self.settings = replace(self.settings, sites_file=path)

    def use_remote_schedd(self, token_dir: Path | None = None, **changes: object) -> None:
        """Write a sites file with one site, REMOTE: the second pool's schedd, with spooled files."""
        second = self.grid.second
        pool = HTCondorPool(
            name="remote",
            collector=f"127.0.0.1:{second.collector_port}",
            schedd=second.schedd_name,
            token_dir=token_dir or second.client_folder / "tokens.d",
            spool=True,
        )
        site = self.sites["FAR"].replace(name="REMOTE", batch="htcondor@remote", grid_resource="")
        site = site.replace(**changes)
        path = self.folder / "remote.toml"
        sites_file.write_sites_file([site], [pool], path)
        self.settings = replace(self.settings, sites_file=path)

    def set_payload(self, script: str) -> None:
        """Make jobs run a script and then report an answer."""
        result = '{"format": 1, "values": {}, "extras": {"answer": 42}, "failure": null}'
        (self.test / "run.sh").write_text(
            f"#!/bin/sh\n{script}\necho '{result}' > \"$TREEHAMMER_RESULT\"\n"
        )

    def submit_campaign(self, *arguments: str) -> str:
        """Submit and return the campaign's id."""
        done = self.invoke_command("submit", str(self.test), *arguments)
        assert done.exception is None, (done.output, done.exception)
        return self.last_campaign_id()

    def follow_campaign(self, campaign: str) -> str:
        """Wait until all jobs of a campaign have ended and return the command's output."""
        followed = self.invoke_command("status", campaign, "--follow")
        assert followed.exception is None, (followed.output, followed.exception)
        return followed.output

    def run_in_shell(self, *arguments: str) -> str:
        """Run a command in another process and return its output, including errors."""
        done = command_forker.run_command(
            [
                *("--data-dir", str(self.settings.data_dir)),
                *("--sites-file", str(self.settings.sites_file)),
                *arguments,
            ]
        )
        return done.stdout + done.stderr


DATASET = "tiny"
#: Two sites read a few branches with both releases; one of them has a corrupt replica, which the
#: checksum of all values finds.
NIGHTLY_CAMPAIGN, GOOD_SITE, BROKEN_SITE = "nightly", "SITE_A", "SITE_B"
#: The third site has a door with a protocol that the release does not support.
DOORS_CAMPAIGN, DISTANT_SITE = "every way in", "SITE_C"
RELEASES = ("6.38.00", "6.40.00")


@dataclass(frozen=True)
class GridCampaigns:
    """User with two completed campaigns.

    Attributes:
        folder: the user's data directory with the database.
        address: URL of the service, to which the jobs report.
        cli_flags: global options of the user's commands.
    """

    folder: Path
    address: str
    cli_flags: tuple[str, ...]

    def run_command(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command and return its output."""
        done = command_forker.run_command([*self.cli_flags, *words], folder=self.folder)
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    def start_command(self, *words: str) -> subprocess.Popen[str]:
        """Start a long command."""
        return subprocess.Popen(
            [sys.executable, "-m", "treehammer", *self.cli_flags, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def query_database(self, columns: str, where: str = "1") -> list[tuple[Any, ...]]:
        """Query the database file directly."""
        tables = " join ".join(
            [
                "measurement",
                *(
                    f"{dimension.name} on {dimension.name}.id = {dimension.key}"
                    for dimension in DIMENSIONS
                ),
            ]
        )
        with closing(sqlite3.connect(self.folder / "results.db")) as database:
            return database.execute(f"select {columns} from {tables} where {where}").fetchall()


@contextmanager
def run_grid_campaigns(
    grid: Grid, catalogue: FolderCatalogue, folder: Path
) -> Iterator[GridCampaigns]:
    """Run :data:`NIGHTLY_CAMPAIGN` and :data:`DOORS_CAMPAIGN`, which report to the service.

    Args:
        catalogue: has :data:`DATASET`.
        folder: becomes the user's data directory.
    """
    (folder / "cache").mkdir()
    (folder / "cache" / "datasets").symlink_to(catalogue.root)
    site_list.place_dataset(DATASET, catalogue, grid.box)
    broken = site_list.replica_path(grid.box, BROKEN_SITE, DATASET, f"{DATASET}.root")
    content = broken.read_bytes()
    site_list.corrupt_file(broken)
    key = folder / "submit.key"
    try:
        with serve_folder(folder, "--read-access", "public") as address:
            settings = folder / "user.toml"
            settings.write_text(
                f'cache_dir = "{folder / "cache"}"\nsites_file = "{grid.sites_file}"\n'
                f'service_url = "{address}"\nservice_token_file = "{key}"\n',
                encoding="utf-8",
            )
            flags = ("--config", str(settings), "--data-dir", str(folder))
            results = GridCampaigns(folder, address, flags)
            results.run_command(
                "token", "create", "--role", "submit", "--name", "me", "-o", str(key)
            )
            _run_both_campaigns(results)
            yield results
    finally:
        broken.write_bytes(content)


def _run_both_campaigns(results: GridCampaigns) -> None:
    """Run both campaigns concurrently to their end; some measurements fail on purpose."""
    few = ("-S", f"dataset={DATASET}", "-S", "rounds=1", "-S", "passes=2", "-P", "cache_mb=30")
    nightly = results.start_command(
        *("submit", f"{REPOSITORY}@HEAD:hctests/ttree-read", "--name", NIGHTLY_CAMPAIGN, *few),
        *("--sites", f"{GOOD_SITE},{BROKEN_SITE}", "-S", "repeats=1", "-P", "branches=0.02"),
        *("--in-flight", "2", "--wait"),
    )
    doors = results.start_command(
        *("submit", f"{REPOSITORY}@HEAD:hctests/access-modes", "--name", DOORS_CAMPAIGN, *few),
        *("--sites", DISTANT_SITE, "-S", "repeats=1", "-P", f"root={RELEASES[-1]}"),
        *("-P", "access=direct", "-P", "door=root,http", "-P", "branches=1.0"),
        *("--in-flight", "2", "--wait"),
    )
    # What a release does not support is no failure.
    for process, code in ((nightly, 1), (doors, 0)):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == code, output
    results.run_command("compare", *RELEASES, "--campaign", NIGHTLY_CAMPAIGN, codes=(0, 1))
