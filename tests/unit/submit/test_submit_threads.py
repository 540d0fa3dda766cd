"""CPUs of jobs with several threads: requests, clusters, cost and limits of this machine."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from plan_factory import READING_TEST, make_grid_plan, make_grid_site, make_local_plan

from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.plan import plan_clusters
from treehammer.submit.sites.site_model import Ceilings

THREADS = READING_TEST.replace("[matrix]", "[matrix]\nthreads = [1, 4]")


def test_job_requests_as_many_cpus_as_threads(tmp_path: Path) -> None:
    plan = make_grid_plan(tmp_path / "test", THREADS)
    assert {cluster.lanes: cluster.jobs for cluster in plan_clusters(plan)} == {
        (("root", 1),): 5,  # with the checksum job
        (("root", 4),): 4,
    }
    (tmp_path / "jobs").mkdir()
    jobs = list(plan.jobs)
    for job, description in zip(
        jobs, render_jobs(plan, tmp_path / "jobs", jobs, environ={}), strict=True
    ):
        assert f"\nrequest_cpus = {job.cpus}\n" in description.text
    assert [job.cpus for job in jobs] == [1, 1, 4, 4] * 2 + [1]


def test_bundled_threads_and_narrow_sites_request_the_most_cpus(tmp_path: Path) -> None:
    bundled = THREADS.replace('bundle = ["root"]', 'bundle = ["threads"]')
    timed, checksum = plan_clusters(make_grid_plan(tmp_path, bundled))
    assert (timed.cpus, checksum.cpus) == (4, 1)
    narrow = make_grid_site(ceilings=Ceilings(in_flight=1))
    (shared,) = plan_clusters(make_grid_plan(tmp_path, THREADS, narrow))
    assert (shared.cpus, shared.jobs, shared.in_flight) == (4, 9, 1)


def test_local_job_takes_slots_but_not_more_than_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_local_plan(tmp_path / "test", THREADS)
    (tmp_path / "jobs").mkdir()
    texts = [job.text for job in render_jobs(plan, tmp_path / "jobs", environ={})]
    limits = [tomllib.loads(text)["limits"]["cpus"] for text in texts]
    assert limits == [job.cpus for job in plan.jobs]
    costs = cost_estimate.estimate_site_costs(plan, {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(4)))
    assert cost_estimate.list_ceiling_violations(plan, costs) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert cost_estimate.list_ceiling_violations(plan, costs) == [
        "This machine has 2 CPUs for local jobs; threads = 4 needs 4: -P threads=2."
    ]


def test_cost_counts_reserved_cpus(tmp_path: Path) -> None:
    (plain,) = cost_estimate.estimate_site_costs(make_grid_plan(tmp_path, READING_TEST), {})
    assert plain.reserved_s == plain.wall_s
    four = THREADS.replace("threads = [1, 4]", "threads = [4]")
    (cost,) = cost_estimate.estimate_site_costs(make_grid_plan(tmp_path, four), {})
    assert cost.wall_s is not None
    assert cost.reserved_s is not None
    assert plain.wall_s is not None
    assert cost.cpu_s == plain.cpu_s
    assert cost.wall_s < plain.wall_s < cost.reserved_s < 4 * cost.wall_s  # the checksum has one
