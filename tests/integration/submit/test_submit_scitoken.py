"""Authentication by SciToken at a real pool."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from condor_jobs import pool_from_sites_file
from grid_fixtures import Grid
from grid_user import GridUser
from scitoken_issuer import ScitokenIssuer, write_client_config

from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Door
from treehammer.testbed.components.condor_pool import SCITOKEN_USER


@pytest.fixture(scope="module")
def issuer(pool: Grid) -> ScitokenIssuer:
    made = ScitokenIssuer()
    made.publish_keys(pool.pool)
    return made


class TokenDesk(GridUser):
    """A user of the first pool who authenticates only by a SciToken."""

    def use_token(self, token: Path) -> None:
        """Write a sites file with this token, and spooling as for a remote schedd."""
        config = write_client_config(self.grid.pool, self.folder)
        pool = pool_from_sites_file(
            self.grid, config=config, scitoken_file=token, spool=True, submit_dir=None
        )
        path = self.folder / "sites.toml"
        site = replace(
            self.sites[self.grid.box.sites[0]], doors=(Door("file", "file", "/nowhere"),)
        )
        sites_file.write_sites_file([site], [pool], path)
        self.settings = replace(self.settings, sites_file=path)

    def checks(self) -> dict[str, dict[str, str]]:
        """Check the pool in a new process, as sessions last as long as their process."""
        rows = json.loads(self.run_in_shell("sites", "check", "--json").partition("]")[0] + "]")
        return {row["check"]: row for row in rows if row["site"] == "pool first"}


@pytest.fixture
def user(pool: Grid, tmp_path: Path) -> TokenDesk:
    return TokenDesk(tmp_path, pool)


def test_campaign_runs_with_scitoken(user: TokenDesk, issuer: ScitokenIssuer) -> None:
    user.use_token(issuer.write_token(user.folder / "scitoken"))
    found = user.checks()
    assert found["token scitoken"]["finding"].startswith("valid until")
    assert f"accepts jobs of {SCITOKEN_USER}@{user.grid.pool.domain}" in found["schedd"]["finding"]

    user.set_payload("test ! -e scitoken")
    said = user.run_in_shell(
        "submit", str(user.test), "--sites", user.grid.box.sites[0], "-S", "repeats=1", "--wait"
    )
    assert "2 of 2 measured" in said, said
    assert [row["failure_class"] for row in user.read_measurements()] == [None, None]
    mine = f'TreehammerSite == "{user.grid.box.sites[0]}" && Owner == "{SCITOKEN_USER}"'
    owned = user.grid.run_condor_command(
        "condor_q", "-allusers", "-af", "ClusterId", "-constraint", mine
    )
    owned += user.grid.run_condor_command("condor_history", "-af", "ClusterId", "-constraint", mine)
    assert len(owned.split()) == 1


def test_unusable_scitokens_are_reported(user: TokenDesk, issuer: ScitokenIssuer) -> None:
    user.use_token(issuer.write_token(user.folder / "old", life_s=-100))
    found = user.checks()
    assert "expired at" in found["token old"]["finding"]
    assert "denies access" in found["collector"]["finding"]
    assert "scitoken_file" in found["collector"]["remedy"]

    # An issuer of the same name, with a key that the pool does not know.
    user.use_token(ScitokenIssuer().write_token(user.folder / "forged"))
    found = user.checks()
    assert found["token forged"]["result"] == "ok"
    assert "denies access" in found["collector"]["finding"]

    user.use_token(issuer.write_token(user.folder / "reader", scope="condor:/READ"))
    found = user.checks()
    assert found["collector"]["result"] == "ok"
    assert "denies access" in found["schedd"]["finding"]
    secret = (user.folder / "reader").read_text().strip()
    said = user.run_in_shell("submit", str(user.test), "--sites", user.grid.box.sites[0])
    assert "denies access" in said, said
    assert "Try again" not in said
    assert secret not in said
