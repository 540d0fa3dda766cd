"""Campaigns behind a job router, as in an HTCondor-CE: requests, cancellation, holds and limits.

The second pool stands in for an HTCondor-CE, whose packages no distribution of the tests has. Its
router makes a job of its own for each job that arrives, and only these start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grid_user import GridUser

from treehammer.sql.write.store import Store

#: Ways to the router: through the grid universe of the first pool, and to its schedd directly.
WAYS = ("FAR", "REMOTE")


def use_way(user: GridUser, way: str, templates: Path) -> None:
    """Write a sites file with one of the :data:`WAYS`, and with a folder of templates."""
    if way == "FAR":
        user.write_sites_file(FAR={"templates": templates})
    else:
        user.use_remote_schedd(templates=templates)


def write_template(folder: Path, limits: str = "", block: str = "") -> Path:
    """Write a template with other limits, or with more commands."""
    folder.mkdir()
    (folder / "htcondor.sub.j2").write_text(
        '{% extends "shipped/htcondor.sub.j2" %}\n'
        f"{{% set limits = dict(limits, {limits}) %}}\n{{% block site %}}\n{block}\n{{% endblock %}}\n"
    )
    return folder


def list_jobs(user: GridUser) -> list[dict[str, Any]]:
    """List the jobs in the router's schedd."""
    environment = {"CONDOR_CONFIG": str(user.grid.second.client_config)}
    text = user.grid.run_condor_command("condor_q", "-allusers", "-json", **environment)
    found: list[dict[str, Any]] = json.loads(text or "[]")
    return found


def wait_for_routed_job(user: GridUser) -> Mapping[str, Any]:
    """Wait until a routed job runs and return it."""
    found: list[dict[str, Any]] = []

    def is_running() -> bool:
        found[:] = [j for j in list_jobs(user) if j.get("RoutedJob") and j["JobStatus"] == 2]
        return bool(found)

    user.grid.wait_until(is_running, "a routed job runs", 60)
    return found[0]


@pytest.mark.parametrize("way", WAYS)
def test_requests_reach_the_routed_job_until_it_is_cancelled(
    user: GridUser, tmp_path: Path, way: str
) -> None:
    use_way(user, way, write_template(tmp_path / "templates", "wall_s=601, lease_s=77"))
    user.set_payload("sleep 300")
    user.submit_campaign("--sites", way, "-S", "repeats=1")
    routed = wait_for_routed_job(user)
    assert routed["RequestMemory"] == 100
    assert routed["BatchRuntime"] == 11 * 60
    assert routed["JobLeaseDuration"] == 77
    assert routed["RequestDisk"] > 0
    assert "PeriodicRemove" not in routed
    user.run_in_shell("cancel", "last")
    user.grid.wait_until(lambda: not list_jobs(user), "all jobs are removed")


def test_wall_limit_ends_the_routed_job(user: GridUser, tmp_path: Path) -> None:
    use_way(user, "FAR", write_template(tmp_path / "templates", "wall_s=5"))
    user.set_payload("sleep 300")
    user.submit_campaign("--sites", "FAR", "-S", "repeats=1", "--wait")
    with Store.open(user.settings.database) as store:
        jobs = store.jobs(store.campaign("last").id)
        (attempt,) = store.attempts(job.id for job in jobs)
    assert attempt.failure_class == "evicted"
    assert "wall limit of 5 s" in attempt.message
    user.grid.wait_until(lambda: not list_jobs(user), "all jobs are removed")


def test_hold_reason_of_the_routed_job_is_reported(user: GridUser, tmp_path: Path) -> None:
    hold = 'periodic_hold = JobStatus == 2\nperiodic_hold_reason = "the operator says no"'
    use_way(user, "REMOTE", write_template(tmp_path / "templates", "held_s=2", hold))
    user.set_payload("sleep 300")
    user.submit_campaign("--sites", "REMOTE", "-S", "repeats=1", "--wait")
    with Store.open(user.settings.database) as store:
        jobs = store.jobs(store.campaign("last").id)
        attempts = store.attempts(job.id for job in jobs)
    assert attempts[-1].failure_class == "held"
    assert "the operator says no" in attempts[-1].message
    user.grid.wait_until(lambda: not list_jobs(user), "all jobs are removed")


def test_job_that_a_computing_element_does_not_start_again_is_lost(
    user: GridUser, tmp_path: Path
) -> None:
    """An HTCondor-CE removes a job whose routed job would start twice, by default."""
    block = "on_exit_remove = false\nMy.TestbedJobRetries = False"
    use_way(user, "REMOTE", write_template(tmp_path / "templates", block=block))
    user.set_payload("true")
    user.submit_campaign("--sites", "REMOTE", "-S", "repeats=1", "--wait")
    with Store.open(user.settings.database) as store:
        jobs = store.jobs(store.campaign("last").id)
        attempts = store.attempts(job.id for job in jobs)
    assert "disabled job retries" in attempts[-1].message
    assert attempts[-1].failure_class == "lost", "the removal explains the end"
    assert "1 requeued" in user.run_in_shell("resume", "last")
