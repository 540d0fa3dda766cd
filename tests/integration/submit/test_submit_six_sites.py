"""Campaigns over unlike sites with tokens only, and at an ARC computing element."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from condor_jobs import ScitokenIssuer, write_client_config
from grid_campaigns import GridUser
from grid_fixtures import Grid, run_testbed
from tiny_dataset import write_dataset

from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.campaigns import campaign_polling
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Site
from treehammer.testbed.components import secure_storage, site_list
from treehammer.testbed.components.arc_element import ARC_SITE, ArcElement, proxy_file
from treehammer.testbed.components.condor_pool import SECOND_SITE
from treehammer.testbed.components.site_list import build_components

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="ARC's root folder needs root")

DATASET = "six-sites"
SECURE, PLAIN = ("SITE_A", "SITE_B"), ("SITE_C", "SITE_D")
REMOTE = "REMOTE"
SITES = (*SECURE, *PLAIN, ARC_SITE, REMOTE)
VANISHING = PLAIN[0]
#: Seconds after which a lost node is given up, and validity of the token that expires.
LEASE_S, SHORT_LIFE_S = 20, 30.0
TEST_TOML = f"""
[test]
name = "six-sites"
payload = "read.py"
dataset = "{DATASET}"
repeats = 2
rounds = 1
wall_limit_s = 60
memory_limit_mb = 200
[matrix]
root = ["xrootd:6.2.1"]
half = ["first", "second"]
bundle = ["half"]
[settings]
nap_s = 0
"""
#: Reads every file of the dataset through its door, slowly if asked.
PAYLOAD = """
import json, os, time
from XRootD import client

settings = json.load(open(os.environ["TREEHAMMER_JOB"]))["settings"]
for url in os.environ["TREEHAMMER_URLS"].split():
    file = client.File()
    status, _ = file.open(url)
    assert status.ok, status.message
    status, content = file.read()
    assert status.ok and len(content) == 100_000, status.message
    file.close()
time.sleep(float(settings["nap_s"]))
with open(os.environ["TREEHAMMER_RESULT"], "w") as result:
    json.dump({"format": 1, "values": {}, "extras": {}, "failure": None}, result)
"""


@dataclass
class SiteAccount:
    """Measurements of one site: planned, measured, failed by class, and without any record."""

    planned: int
    measured: int
    failed: Counter[str]
    lost: int
    attempts: int


class SixSitesUser(GridUser):
    """User of the whole testbed, whose only credentials are tokens."""

    def __init__(self, folder: Path, grid: Grid) -> None:
        super().__init__(folder, grid)
        (self.test / "test.toml").write_text(TEST_TOML)
        (self.test / "read.py").write_text(PAYLOAD)
        (self.test / "run.sh").unlink()
        self._write_sites(grid)
        contents = {f"{n}.bin": os.urandom(100_000) for n in range(2)}
        write_dataset(self.settings.datasets_dir, DATASET, contents)
        site_list.place_dataset(DATASET, FolderCatalogue(self.settings.datasets_dir), grid.box)

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
        known = sites_file.read_sites_file(grid.sites_file)
        sites: dict[str, Site] = dict(known.sites)
        behind = sites.pop(SECOND_SITE)
        sites[REMOTE] = behind.replace(name=REMOTE, batch="htcondor@remote", grid_resource="")
        templates = self.folder / "templates"
        templates.mkdir()
        (templates / "htcondor.sub.j2").write_text(
            '{% extends "shipped/htcondor.sub.j2" %}\n'
            f"{{% set limits = dict(limits, lease_s={LEASE_S}) %}}\n"
        )
        sites[VANISHING] = sites[VANISHING].replace(templates=templates)
        # XRootD's client cannot initialize TLS in ARC's root folder.
        sites[ARC_SITE] = sites[ARC_SITE].replace(doors=sites[PLAIN[1]].doors)
        path = self.folder / "six.toml"
        sites_file.write_sites_file(sites.values(), [*known.pools.values(), remote], path)
        self.settings = replace(self.settings, sites_file=path)

    def run_in_shell(self, *arguments: str) -> str:
        """Run a command with the cache that holds the dataset."""
        return super().run_in_shell("--cache-dir", str(self.settings.cache_dir), *arguments)

    def write_token(self, name: str, lifetime_s: float) -> str:
        """Write a token for the doors; return its path."""
        issuer = secure_storage.load_issuer(self.grid.box)
        path = self.folder / name
        return str(issuer.write_token(path, secure_storage.READ_SCOPE, lifetime_s))

    def submit(self, token: str, *more: str) -> str:
        """Submit to all sites; return the campaign's id."""
        options = ("--token-file", token, "--in-flight", "2")
        said = self.run_in_shell(
            "submit", str(self.test), "--sites", ",".join(SITES), *options, *more
        )
        assert "Submitted as" in said, said
        return self.last_campaign_id()

    def count_measurements(self, campaign: str) -> dict[str, SiteAccount]:
        """Count the measurements of each site by the last attempts of its jobs."""
        accounts = {site: SiteAccount(0, 0, Counter(), 0, 0) for site in SITES}
        columns = ("job_id", "attempt", "failure_class", "failure_kind")
        with Store.open(self.settings.database) as store:
            jobs = store.jobs(campaign)
            attempts = store.attempts(job.id for job in jobs)
            rows = list(store.measurements(Selection((campaign,)), columns))
        for job in jobs:
            mine = [one.number for one in attempts if one.job_id == job.id]
            last = [r for r in rows if r["job_id"] == job.id and r["attempt"] == max(mine)]
            good = sum(not row["failure_class"] for row in last)
            account = accounts[job.site]
            account.planned += job.planned_measurements
            account.measured += good
            account.failed.update(
                f"{r['failure_class']}/{r['failure_kind']}" for r in last if r["failure_class"]
            )
            account.lost += job.planned_measurements - len(last)
            account.attempts += len(mine)
        return accounts


def print_accounts(title: str, seconds: float, accounts: dict[str, SiteAccount]) -> None:
    """Print a table of a campaign."""
    print(f"\n{title}: {seconds:.0f} s")
    print(f"{'site':<9} planned  measured  attempts  lost  failed")
    for site, one in accounts.items():
        failed = ", ".join(f"{count} {kind}" for kind, count in one.failed.items()) or "–"
        print(
            f"{site:<9} {one.planned:>7}  {one.measured:>8}  {one.attempts:>8}  {one.lost:>4}  {failed}"
        )


@pytest.fixture(scope="module")
def six_sites_grid() -> Iterator[Grid]:
    """Testbed of four sites, two of them secure, a second pool and ARC; no ROOT."""
    with run_testbed(
        "six",
        build_components,
        4,
        second_pool=True,
        secure_sites=2,
        arc=True,
        releases=(),
    ) as testbed:
        yield testbed


@pytest.fixture
def six_sites(six_sites_grid: Grid, tmp_path: Path) -> SixSitesUser:
    return SixSitesUser(tmp_path, six_sites_grid)


def test_campaign_with_tokens_reaches_six_sites(six_sites: SixSitesUser) -> None:
    start = time.monotonic()
    campaign = six_sites.submit(six_sites.write_token("token", 3600))
    said = six_sites.run_in_shell("status", campaign, "--follow")
    accounts = six_sites.count_measurements(campaign)
    print_accounts("tokens only", time.monotonic() - start, accounts)
    assert "24 of 24 measured" in said, said
    assert {one.measured for one in accounts.values()} == {4}, accounts


def test_expiring_tokens_and_a_vanishing_node_lose_nothing(six_sites: SixSitesUser) -> None:
    start = time.monotonic()
    token = six_sites.write_token("short", SHORT_LIFE_S)
    campaign = six_sites.submit(token, "-S", "settings.nap_s=8")
    grid = six_sites.grid
    grid.wait_until(lambda: bool(grid.starter_pids(VANISHING)), "a job runs at the lost node")
    grid.kill_startd(VANISHING)
    said = six_sites.run_in_shell("status", campaign, "--follow")
    accounts = six_sites.count_measurements(campaign)
    print_accounts("expiring token, lost node", time.monotonic() - start, accounts)
    failed = sum((one.failed for one in accounts.values()), Counter[str]())
    assert set(failed) == {"credential/expired"}, (accounts, said)
    assert not sum(one.lost for one in accounts.values()), (accounts, said)
    assert accounts[VANISHING].attempts == 3, "the job of the lost node started again"


@pytest.fixture
def arc_user(six_sites_grid: Grid, tmp_path: Path) -> Iterator[GridUser]:
    """User whose site ARC_SITE is behind the computing element."""
    (element,) = [part for part in six_sites_grid.parts if isinstance(part, ArcElement)]
    user = GridUser(tmp_path, six_sites_grid)
    submit = {"x509userproxy": str(proxy_file(six_sites_grid.box))}
    user.sites["ARC_SITE"] = user._site_table("ARC_SITE", grid_resource=element.grid_resource)
    user.write_sites_file(ARC_SITE={"submit": submit})
    yield user
    with Store.open(user.settings.database) as store:
        tracker = campaign_polling.make_tracker(store, user.settings)
        for campaign in store.campaigns():
            tracker.cancel(campaign)


def test_campaign_returns_measurements_from_arc(arc_user: GridUser) -> None:
    arc_user.set_payload("id -un")
    arc_user.submit_campaign("--sites", "ARC_SITE", "-S", "repeats=2", "--in-flight", "2")
    said = arc_user.follow_campaign("last")
    assert "4 of 4 measured" in said, said
    rows = arc_user.read_measurements()
    assert not [row for row in rows if row["failure_class"]]
