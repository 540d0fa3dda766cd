"""Nodes that vanish under running jobs, and jobs that fill their disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from grid_user import GridUser

from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store

LEASE_S = 20


def _limit_jobs(user: GridUser, folder: Path, limits: str, lines: str = "") -> str:
    """Change limits of the first site's template; return the site."""
    folder.mkdir()
    (folder / "htcondor.sub.j2").write_text(
        f'{{% extends "shipped/htcondor.sub.j2" %}}\n{{% set limits = dict(limits, {limits}) %}}\n'
        f"{{% block site %}}\n{lines}\n{{% endblock %}}\n"
    )
    site = user.grid.box.sites[0]
    user.write_sites_file(**{site: {"templates": folder}})
    return site


def _attempts(user: GridUser) -> list[AttemptRow]:
    with Store.open(user.settings.database) as store:
        return store.attempts(job.id for job in store.jobs(store.campaign("last").id))


@pytest.mark.parametrize("schedd_too", [False, True])
def test_status_names_lost_node_until_job_runs_again(
    user: GridUser, tmp_path: Path, schedd_too: bool
) -> None:
    site = _limit_jobs(user, tmp_path / "templates", f"lease_s={LEASE_S}")
    user.set_payload("sleep 5")
    user.submit_campaign("--sites", site, "-S", "repeats=1")
    started = user.grid.submit_dir / user.last_campaign_id()
    user.grid.wait_until(
        lambda: any("ExecuteEvent" in log.read_text() for log in started.glob("*/events.log")),
        "the job runs",
    )
    if schedd_too:
        user.grid.kill_schedd()
    user.grid.kill_startd(site)
    user.grid.wait_until(
        lambda: f"no contact to slot1@{site}@" in user.run_in_shell("status", "last"),
        "status names the lost node",
        timeout_s=LEASE_S,
    )
    said = user.follow_campaign("last")
    assert "2 of 2 measured" in said
    first, *_, last = _attempts(user)
    assert (first.failure_class, last.failure_class) == ("lost", "")
    assert last.started_us - first.started_us < 60e6, "no longer than the lease"


def test_job_that_fills_its_disk_is_removed(user: GridUser, tmp_path: Path) -> None:
    site = _limit_jobs(user, tmp_path / "templates", "idle_s=600", "request_disk = 20000")
    user.set_payload("head -c 50000000 /dev/zero >big; sleep 60")
    user.submit_campaign("--sites", site, "-S", "repeats=1", "--wait")
    attempt = _attempts(user)[-1]
    assert attempt.failure_class == "evicted"
    assert "MiB of disk, more than the 19 MiB requested" in attempt.message
