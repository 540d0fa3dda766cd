"""A campaign over six unlike sites, one behind an ARC computing element, with tokens only."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from condor_jobs import ScitokenIssuer, write_client_config
from grid_campaigns import GridUser
from grid_fixtures import Grid, run_testbed
from tiny_dataset import write_dataset

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Site
from treehammer.testbed.components import dataset_placement, secure_storage
from treehammer.testbed.components.arc_element import ARC_SITE
from treehammer.testbed.components.condor_pool import SECOND_SITE
from treehammer.testbed.components.site_list import build_components

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="ARC's root folder needs root")

DATASET = "six-sites"
SECURE, PLAIN = ("SITE_A", "SITE_B"), ("SITE_C", "SITE_D")
REMOTE = "REMOTE"
SITES = (*SECURE, *PLAIN, ARC_SITE, REMOTE)
TEST_TOML = f"""
[test]
name = "six-sites"
payload = "read.py"
dataset = "{DATASET}"
repeats = 1
rounds = 1
wall_limit_s = 60
memory_limit_mb = 200
[matrix]
root = ["xrootd:6.2.1"]
half = ["first", "second"]
bundle = ["half"]
"""
#: Reads every file of the dataset through its door.
PAYLOAD = """
import json, os
from XRootD import client

for url in os.environ["TREEHAMMER_URLS"].split():
    file = client.File()
    status, _ = file.open(url)
    assert status.ok, status.message
    status, content = file.read()
    assert status.ok and len(content) == 100_000, status.message
    file.close()
with open(os.environ["TREEHAMMER_RESULT"], "w") as result:
    json.dump({"format": 1, "values": {}, "extras": {}, "failure": None}, result)
"""


class SixSitesUser(GridUser):
    """User of the whole testbed, whose only credentials are tokens."""

    settings: Settings

    def __init__(self, folder: Path, grid: Grid) -> None:
        super().__init__(folder, grid)
        (self.test / "test.toml").write_text(TEST_TOML)
        (self.test / "read.py").write_text(PAYLOAD)
        (self.test / "run.sh").unlink()
        self._write_sites(grid)
        contents = {f"{n}.bin": os.urandom(100_000) for n in range(2)}
        write_dataset(self.settings.datasets_dir, DATASET, contents)
        dataset_placement.place_dataset(
            DATASET, FolderCatalogue(self.settings.datasets_dir), grid.box
        )

    def _write_sites(self, grid: Grid) -> None:
        """Replace the second pool's site by one behind its schedd, with a SciToken."""
        issuer = ScitokenIssuer()
        issuer.publish_keys(grid.second)
        remote = HTCondorPool(
            name="remote",
            config=write_client_config(grid.second, self.folder),
            schedd=grid.second.schedd_name,
            scitoken_file=issuer.write_token(self.folder / "scitoken"),
            spool=True,
        )
        content = sites_file.read_sites_file(grid.sites_file)
        sites: dict[str, Site] = dict(content.sites)
        behind = sites.pop(SECOND_SITE)
        sites[REMOTE] = behind.replace(name=REMOTE, batch="htcondor@remote", grid_resource="")
        # XRootD's client cannot initialize TLS in ARC's root folder.
        sites[ARC_SITE] = sites[ARC_SITE].replace(doors=sites[PLAIN[1]].doors)
        path = self.folder / "six.toml"
        sites_file.write_sites_file(sites.values(), [*content.pools.values(), remote], path)
        self.settings = replace(self.settings, sites_file=path)

    def run_in_shell(self, *arguments: str) -> str:
        """Run a command with the cache that holds the dataset."""
        return super().run_in_shell("--cache-dir", str(self.settings.cache_dir), *arguments)


@pytest.fixture(scope="module")
def six_sites_grid() -> Iterator[Grid]:
    """Testbed of four sites, two of them secure, a second pool and ARC; no ROOT."""
    with run_testbed(
        "six", build_components, 4, second_pool=True, secure_sites=2, arc=True, releases=()
    ) as testbed:
        yield testbed


def test_tokens_alone_reach_six_sites(six_sites_grid: Grid, tmp_path: Path) -> None:
    user = SixSitesUser(tmp_path, six_sites_grid)
    token = secure_storage.load_issuer(six_sites_grid.box).write_token(
        tmp_path / "token", secure_storage.READ_SCOPE, 3600
    )
    options = ("--sites", ",".join(SITES), "--token-file", str(token), "--in-flight", "2")
    output = user.run_in_shell("submit", str(user.test), *options)
    assert "Submitted as" in output, output
    output = user.run_in_shell("status", "last", "--follow")
    assert "12 of 12 measured" in output, output
    good = [row["site"] for row in user.read_measurements("site") if not row["failure_class"]]
    assert Counter(good) == dict.fromkeys(SITES, 2), output
