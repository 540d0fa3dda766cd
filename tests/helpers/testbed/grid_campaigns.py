"""Campaigns of real ROOT reads at the sites of a testbed, and the service that shows them meanwhile."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataset_specs import load_generated_spec
from demo_checkout import REPOSITORY
from grid_fixtures import Grid
from local_service import serve_folder

from treehammer import config
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.production import root_process
from treehammer.progress import no_progress
from treehammer.sql.core.dimensions import DIMENSIONS
from treehammer.testbed.components import replica_files

DATASET = "tiny"
_SPEC = REPOSITORY / "tests" / "integration" / "datasets" / "tiny.toml"
#: Two sites read both releases, one of them a replica that is broken on its disk.
NIGHTLY_CAMPAIGN, GOOD_SITE, BROKEN_SITE = "nightly", "SITE_A", "SITE_B"
#: The third one has a door of a protocol that the release does not speak.
DOORS_CAMPAIGN, DISTANT_SITE = "every way in", "SITE_C"
RELEASES = ("6.38.00", "6.40.00")


@dataclass(frozen=True)
class GridCampaigns:
    """A user with two campaigns that are over.

    Attributes:
        folder: the user's data directory, with the database.
        address: of the service on it, to which the jobs report.
        flags: with which the user types commands.
    """

    folder: Path
    address: str
    cli_flags: tuple[str, ...]

    def command_line(self, *words: str) -> list[str]:
        """A command of the user's."""
        return [sys.executable, "-m", "treehammer", *self.cli_flags, *words]

    def run_command(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Type a command; what it printed."""
        done = subprocess.run(
            self.command_line(*words), capture_output=True, text=True, check=False, cwd=self.folder
        )
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    def start_command(self, *words: str) -> subprocess.Popen[str]:
        """Type a command that takes long."""
        return subprocess.Popen(
            self.command_line(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def query_database(self, columns: str, where: str = "1") -> list[tuple[Any, ...]]:
        """Ask the database's file itself."""
        tables = " join ".join(
            ["measurement", *(f"{one.name} on {one.name}.id = {one.key}" for one in DIMENSIONS)]
        )
        with closing(sqlite3.connect(self.folder / "results.db")) as database:
            return database.execute(f"select {columns} from {tables} where {where}").fetchall()


@contextmanager
def run_grid_campaigns(grid: Grid, folder: Path) -> Iterator[GridCampaigns]:
    """Have two campaigns run at three sites, reporting to the service; see :data:`NIGHTLY` and :data:`DOORS`."""
    catalogue = FolderCatalogue(folder / "cache" / "datasets")
    software = config.load_settings().software_dir
    catalogue.make(
        load_generated_spec(_SPEC),
        root_process.prepare_dataset_root(RELEASES[-1], software, no_progress),
    )
    replica_files.place_dataset(DATASET, catalogue, grid.box)
    broken = replica_files.replica_path(grid.box, BROKEN_SITE, DATASET, f"{DATASET}.root")
    whole = broken.read_bytes()
    replica_files.corrupt_file(broken)
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
        broken.write_bytes(whole)


def _run_both_campaigns(results: GridCampaigns) -> None:
    """Both at once, until they are over; some fail, as they should."""
    few = ("-S", f"dataset={DATASET}", "-S", "rounds=1", "-S", "passes=2", "-P", "cache_mb=30")
    nightly = results.start_command(
        *("submit", f"{REPOSITORY}@HEAD:hctests/ttree-read", "--name", NIGHTLY_CAMPAIGN, *few),
        *("--sites", f"{GOOD_SITE},{BROKEN_SITE}", "-S", "repeats=1", "--in-flight", "2", "--wait"),
    )
    doors = results.start_command(
        *("submit", f"{REPOSITORY}@HEAD:hctests/access-modes", "--name", DOORS_CAMPAIGN, *few),
        *("--sites", DISTANT_SITE, "-S", "repeats=1", "-P", f"root={RELEASES[-1]}"),
        *("-P", "access=direct", "-P", "door=root,http", "-P", "branches=1.0"),
        *("--in-flight", "2", "--wait"),
    )
    for submitting in (nightly, doors):
        said, _ = submitting.communicate(timeout=300)
        assert submitting.returncode == 1, said
    results.run_command("compare", *RELEASES, "--campaign", NIGHTLY_CAMPAIGN, codes=(0, 1))
