"""Users of a testbed's sites, whose campaigns are cheap and need no storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import command_forker
from condor_jobs import pool_from_sites_file
from grid_fixtures import Grid
from local_user import TEST_TOML, LocalUser

from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door, Site

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
