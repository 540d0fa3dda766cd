"""Plans of jobs that start together: positions, slots, limits, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plan_factory import make_grid_plan, make_grid_site, make_local_plan, make_site

from treehammer.collectors.job_spec import JobSpec
from treehammer.collectors.worker.load_start import PATIENCE_S
from treehammer.collectors.worker.run.job_context import load_job
from treehammer.errors import ConfigError
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.cost_estimate import estimate_site_costs
from treehammer.submit.planning.job_planner import WALL_LIMIT_OVERHEAD_S
from treehammer.submit.planning.permission_checks import check_common_start
from treehammer.submit.planning.plan import plan_clusters
from treehammer.submit.planning.submission_options import Pace, SubmissionOptions
from treehammer.submit.sites.site_model import Ceilings

LOAD_TEST = """
[test]
name = "load"
payload = "run.sh"
repeats = 4
rounds = 2
[matrix]
rate_hz = [1, 2]
bundle = ["rate_hz"]
[load]
together = true
ramp = "3/20s"
wait_s = 100
"""


def test_jobs_know_their_place_in_the_load(tmp_path: Path) -> None:
    sites = [make_grid_site(name=name) for name in ("SITE_A", "SITE_B")]
    jobs = list(make_grid_plan(tmp_path, LOAD_TEST, *sites).jobs)
    loads = [job.spec.load for job in jobs if job.spec.load]
    assert [(load.index, load.jobs) for load in loads] == [(n, 8) for n in range(8)]
    assert [load.level_start_s for load in loads] == [0, 0, 0, 20, 20, 20, 40, 40]
    assert [load.first_step for load in loads[-2:]] == [4, 4]
    assert len({load.barrier for load in loads}) == 1
    assert {load.folder for load in loads} == {""}, "they meet at the results service"
    # The same variant at the same time everywhere.
    orders = {tuple(dict(e.variant)["rate_hz"] for e in job.spec.executions) for job in jobs}
    assert len(orders) == 1
    wait_s = 4 * (100 + PATIENCE_S + 40 + 5) + 3 * 60
    assert jobs[-1].wall_limit_s == 4 * (600 + WALL_LIMIT_OVERHEAD_S) + wait_s


def test_variants_in_different_jobs_start_one_after_the_other(tmp_path: Path) -> None:
    text = LOAD_TEST.replace('bundle = ["rate_hz"]', "")
    plan = make_local_plan(tmp_path, text)
    loads = [job.spec.load for job in plan.jobs if job.spec.load]
    assert [load.index for load in loads] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len({load.barrier for load in loads[:4]}) == 1
    assert loads[3].barrier != loads[4].barrier
    assert [loads[n].wait_s for n in (3, 4)] == [100, 160], "a failed job frees its slot early"
    assert len(plan.jobs) == 8
    (cluster,) = plan_clusters(make_grid_plan(tmp_path, text))
    assert cluster.in_flight == 4, "as many as start together"
    assert cluster.wall_s == max(job.wall_limit_s for job in plan.jobs)


def test_rendered_job_is_accepted_by_the_worker(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path, LOAD_TEST)
    folder = tmp_path / "rendered"
    folder.mkdir()
    description, *_ = render_jobs(plan, folder)
    assert description.together == 4
    job = load_job(str(description.inputs["job.json"]))
    assert job.load is not None
    assert (job.load.folder, job.load.lead_s) == ("../../starts", 5.0)
    document = json.loads(job.to_json())
    assert JobSpec.from_json(json.dumps(document)) == job


def test_load_without_common_start_has_no_barrier(tmp_path: Path) -> None:
    text = LOAD_TEST.replace("together = true", "").replace('ramp = "3/20s"', "")
    job = make_local_plan(tmp_path, text).jobs[0]
    assert job.spec.load is not None
    assert (job.spec.load.barrier, job.spec.load.lead_s) == ("", 0.0)
    assert job.wall_limit_s == 4 * (600 + WALL_LIMIT_OVERHEAD_S)


def test_site_with_fewer_concurrent_jobs_is_refused(tmp_path: Path) -> None:
    site = make_grid_site(ceilings=Ceilings(in_flight=3))
    plan = make_grid_plan(tmp_path, LOAD_TEST, site)
    with pytest.raises(ConfigError, match=r"at most 3 concurrent jobs .* 4 are to start together"):
        cost_estimate.check_ceilings(plan, estimate_site_costs(plan, {}))
    many = LOAD_TEST.replace("repeats = 4", "repeats = 65").replace("3/20s", "30/10s")
    lines = cost_estimate.list_ceiling_violations(make_local_plan(tmp_path, many), [])
    assert len(lines) == 1
    assert "at most 64 concurrent jobs (the limit of the local batch system)" in lines[0]


def test_plan_that_could_never_start_together_is_refused(tmp_path: Path) -> None:
    plan = make_grid_plan(tmp_path, LOAD_TEST)
    check_common_start(plan, has_service=True)
    check_common_start(make_local_plan(tmp_path, LOAD_TEST), has_service=False)
    with pytest.raises(ConfigError, match="common start at the results service"):
        check_common_start(plan, has_service=False)
    mixed = make_grid_plan(tmp_path, LOAD_TEST, make_grid_site(), make_site())
    with pytest.raises(ConfigError, match="common start at the results service"):
        check_common_start(mixed, has_service=False)
    paced = replace(plan, options=SubmissionOptions(Pace(in_flight=2)))
    with pytest.raises(ConfigError, match="cannot be delayed"):
        check_common_start(paced, has_service=True)
    long = make_grid_plan(tmp_path, LOAD_TEST.replace("repeats = 4", "repeats = 10"))
    with pytest.raises(ConfigError, match="the last of 10 jobs would begin after 60 s"):
        check_common_start(long, has_service=True)
