"""Campaigns at a remote schedd: tokens only, and files spooled both ways.

The second pool stands in for an HTCondor-CE, whose packages no distribution of the tests has: its
schedd shares no files with the submitter, accepts tokens only and runs jobs under another identity.
"""

from __future__ import annotations

from grid_user import GridUser


def test_campaign_runs_at_remote_schedd_with_token_and_spool(user: GridUser) -> None:
    user.use_remote_schedd()
    user.set_payload("true")
    user.submit_campaign("--sites", "REMOTE", "-S", "repeats=2", "--in-flight", "2")
    said = user.follow_campaign("last")
    assert "4 of 4 measured" in said, said
    assert not [row for row in user.read_measurements() if row["failure_class"]]


def test_token_of_another_pool_is_refused(user: GridUser) -> None:
    user.use_remote_schedd(user.grid.pool.client_folder / "tokens.d")
    # A process keeps its authenticated sessions, whatever token it has.
    said = user.run_in_shell("submit", str(user.test), "--sites", "REMOTE")
    assert "HTCondor denies access" in said
    assert "Check token_dir of this pool" in said
