"""Campaigns at a remote schedd: tokens only, and files spooled both ways.

The second pool stands in for an HTCondor-CE, whose packages no distribution of the tests has: its
schedd shares no files with the submitter, accepts tokens only and runs jobs under another identity.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grid_user import GridUser

from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import sites_file


def _use_remote_schedd(user: GridUser, token_dir: Path) -> None:
    """Write a sites file whose only pool is the second one's schedd."""
    second = user.grid.second
    pool = HTCondorPool(
        name="remote",
        collector=f"127.0.0.1:{second.collector_port}",
        schedd=second.schedd_name,
        token_dir=token_dir,
        spool=True,
    )
    site = replace(user.sites["FAR"], name="REMOTE", batch="htcondor@remote", grid_resource="")
    path = user.folder / "remote.toml"
    sites_file.write_sites_file([site], [pool], path)
    user.settings = replace(user.settings, sites_file=path)


def test_campaign_runs_at_remote_schedd_with_token_and_spool(user: GridUser) -> None:
    _use_remote_schedd(user, user.grid.second.client_folder / "tokens.d")
    user.set_payload("true")
    user.submit_campaign("--sites", "REMOTE", "-S", "repeats=2", "--in-flight", "2")
    said = user.follow_campaign("last")
    assert "4 of 4 measured" in said, said
    assert not [row for row in user.read_measurements() if row["failure_class"]]


def test_token_of_another_pool_is_refused(user: GridUser) -> None:
    _use_remote_schedd(user, user.grid.pool.client_folder / "tokens.d")
    # A process keeps its authenticated sessions, whatever token it has.
    said = user.run_in_shell("submit", str(user.test), "--sites", "REMOTE")
    assert "HTCondor denies access" in said
    assert "Check token_dir of this pool" in said
