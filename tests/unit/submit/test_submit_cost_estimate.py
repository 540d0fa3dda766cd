"""Cost estimates of plans, ceilings of sites, and jobs with several threads."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_user import LocalUser
from plan_factory import (
    READING_TEST,
    SHELL_TEST,
    make_grid_plan,
    make_grid_site,
    make_local_plan,
    make_manifest,
    make_settings,
    make_site,
)

from treehammer.collectors.job_spec import ExecutionSpec
from treehammer.datasets.manifest import RECORDING
from treehammer.errors import ConfigError
from treehammer.submit.campaigns import submission
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.cost_estimate import (
    ASSUMED_BASIS,
    LOAD_BASIS,
    MEASURED_BASIS,
    UNKNOWN_BASIS,
    ExecutionCost,
)
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import Pace, SubmissionOptions
from treehammer.submit.sites.site_model import Ceilings, Site

LOAD_TEST = f"""{SHELL_TEST}
[load]
duration_s = 30
ceiling = {{mb_per_s = 20}}
"""


def execution(tmp_path: Path, **axes: Any) -> ExecutionSpec:
    spec = next(iter(make_local_plan(tmp_path).jobs)).spec.executions[0]
    return replace(spec, variant={**spec.variant, **axes})


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({}, 300_000_000),
        ({"branches": 0.02}, 6_000_000),
        ({"branches": "Muon_*"}, 300_000_000),
        ({"access": "staged"}, 100_000_000),
    ],
)
def test_read_bytes_scale_with_passes_and_branch_fraction(
    tmp_path: Path, axes: dict[str, Any], expected: int
) -> None:
    data = make_manifest(entries=1000, clusters=10)
    assert cost_estimate.estimate_read_bytes(data, execution(tmp_path, **axes)) == expected


@pytest.mark.parametrize(("clusters", "expected"), [(10, 3 * 100e6 * (1 - 0.99**100)), (1000, 3e6)])
def test_sparse_events_read_most_large_clusters(
    tmp_path: Path, clusters: int, expected: float
) -> None:
    data = make_manifest(entries=1000, clusters=clusters)
    read_bytes = cost_estimate.estimate_read_bytes(data, execution(tmp_path, events=0.01))
    assert read_bytes == pytest.approx(expected, rel=1e-6)


def test_measured_cost_replaces_assumption(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path)
    (assumed,) = cost_estimate.estimate_site_costs(plan, {})
    assert assumed.basis == ASSUMED_BASIS
    assert (assumed.jobs, assumed.measurements) == (5, 18)
    history = {
        f"{e.kind}/{e.identity['series']}": ExecutionCost(10.0, 8.0, MEASURED_BASIS)
        for job in plan.jobs
        for e in job.spec.executions
    }
    (measured,) = cost_estimate.estimate_site_costs(plan, history)
    assert measured.basis == MEASURED_BASIS
    assert measured.cpu_s == pytest.approx(18 * 8.0)
    assert measured.wall_s is not None
    assert measured.wall_s > 180
    sizes = {key: replace(cost, read_bytes=7_000_000) for key, cost in history.items()}
    (counted,) = cost_estimate.estimate_site_costs(plan, sizes)
    assert counted.read_bytes == 18 * 7_000_000, "of all executions, as they were measured"
    history.popitem()
    (mixed,) = cost_estimate.estimate_site_costs(plan, history)
    assert mixed.basis == f"{MEASURED_BASIS}, some {ASSUMED_BASIS}"


def test_cost_without_dataset_is_unknown(tmp_path: Path) -> None:
    (cost,) = cost_estimate.estimate_site_costs(make_local_plan(tmp_path, SHELL_TEST), {})
    assert (cost.wall_s, cost.cpu_s, cost.basis, cost.read_bytes) == (None, None, UNKNOWN_BASIS, 0)


def test_cost_of_a_load_is_its_limit(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path, LOAD_TEST)
    (cost,) = cost_estimate.estimate_site_costs(plan, {})
    assert (cost.jobs, cost.measurements, cost.basis) == (2, 4, LOAD_BASIS)
    assert cost.read_bytes == 4 * 30 * 20e6
    assert cost.wall_s == pytest.approx(4 * (30 + 5 + cost_estimate.WORKER_STARTUP_S))
    blocks = LOAD_TEST + "[settings]\nclients = 2\nblock_kb = 2500\nperiod_s = 10\n"
    (cost,) = cost_estimate.estimate_site_costs(make_local_plan(tmp_path, blocks), {})
    assert cost.read_bytes == 4 * 30 * 0.5e6, "two clients read half a megabyte per second"
    unbounded = LOAD_TEST.replace("mb_per_s = 20", "clients = 20")
    (cost,) = cost_estimate.estimate_site_costs(make_local_plan(tmp_path, unbounded), {})
    assert cost.read_bytes is None


@pytest.mark.parametrize(("branches", "passes"), [(1.0, 1.025), (0.02, 11.0), (0.1, 2.25)])
def test_paired_execution_reads_until_it_has_enough_cpu_time(
    tmp_path: Path, branches: float, passes: float
) -> None:
    data = make_manifest(entries=1000, clusters=10)
    launched = replace(execution(tmp_path, branches=branches), mode="paired", side="A")
    expected = round(passes * branches * data.size)
    assert cost_estimate.estimate_read_bytes(data, launched) == pytest.approx(expected, rel=0.05)
    cost = cost_estimate.estimate_execution(launched, data, {})
    assert cost
    assert cost.cpu_s == pytest.approx(
        cost_estimate.ROOT_STARTUP_S + passes * branches * 4, rel=0.05
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"stagein_bytes": 9, "bytes_read": 1, "passes_done": 3}, 9),
        ({"bytes_read": 5, "bytes_read_extra": 2, "passes_done": 3}, 21),
        ({"bytes_read": 5, "passes_done": None}, None),
    ],
)
def test_bytes_of_all_passes_are_measured(row: dict[str, Any], expected: int | None) -> None:
    columns = dict.fromkeys(cost_estimate.READ_COLUMNS)
    assert cost_estimate.measured_read_bytes({**columns, **row}) == expected


@pytest.mark.parametrize(
    ("recorded_s", "factor", "expected"), [(1.2, 1.0, 1.2), (1.2, 0.5, 2.4), (90.0, 2.0, 30.0)]
)
def test_replay_takes_as_long_as_its_recording(
    tmp_path: Path, recorded_s: float, factor: float, expected: float
) -> None:
    plan = make_local_plan(tmp_path, LOAD_TEST)
    recording = replace(make_manifest(), origin={"kind": RECORDING, "duration_s": recorded_s})
    load = plan.pinned_test.definition.load
    assert load is not None
    job = execution(tmp_path, factor=factor)
    cost = cost_estimate.estimate_execution(job, recording, {}, load)
    assert cost is not None
    assert cost.cpu_s == pytest.approx(expected)
    assert cost.wall_s < expected + 10


def test_plan_of_several_sites_ends_with_its_total(tmp_path: Path) -> None:
    user = LocalUser(tmp_path)
    sites = tmp_path / "sites.toml"
    doors = 'doors = [{name = "file", protocol = "file", prefix = "/a"}]'
    sites.write_text(f"[sites.SITE_A]\n{doors}\n[sites.SITE_B]\n{doors}\n")
    user.settings = replace(user.settings, sites_file=sites)
    arguments = ("submit", str(user.test), "--sites", "SITE_A,SITE_B", "--dry-run")
    lines = [line.split() for line in user.invoke_command(*arguments).output.splitlines()]
    assert [line[:3] for line in lines if line[0] in ("SITE_A", "total")] == [
        ["SITE_A", "2", "4"],
        ["total", "4", "8"],
    ]
    programs = json.loads(user.invoke_command(*arguments, "--json").stdout)
    assert [row["site"] for row in programs] == ["SITE_A", "SITE_B"]


#: 4 jobs of 4 executions of 3 passes, and 2 that read all once: 50 × 100 MB.
GB = 5.0


def _plan(folder: Path, ceilings: Ceilings, pace: Pace) -> Plan:
    site = make_grid_site(ceilings=ceilings)
    return make_grid_plan(folder, READING_TEST, site, options=SubmissionOptions(pace))


def _lines(plan: Plan) -> list[str]:
    return cost_estimate.list_ceiling_violations(plan, cost_estimate.estimate_site_costs(plan, {}))


@pytest.mark.parametrize(
    "ceilings, pace, message",
    [
        (Ceilings(jobs=4), Pace(), "at most 4 jobs in one campaign (ceilings.jobs); 5 are"),
        (Ceilings(bytes_per_day=10**9), Pace(), "at most 1 GB a day (ceilings.bytes_per_day); 5 GB are planned: spread them, --spread 120h"),
        (Ceilings(bytes_per_day=2 * 10**9), Pace(spread_s=2 * 86400), "2.5 GB are planned"),
        (Ceilings(mb_per_s=20), Pace(2), "at most 20 MB/s (ceilings.mb_per_s); 2 concurrent jobs would read about"),
        (Ceilings(mb_per_s=1), Pace(), "read less of each file"),
    ],
)  # fmt: skip
def test_plan_above_ceiling_is_refused(
    tmp_path: Path, ceilings: Ceilings, pace: Pace, message: str
) -> None:
    plan = _plan(tmp_path, ceilings, pace)
    assert cost_estimate.estimate_site_costs(plan, {})[0].read_bytes == GB * 1e9
    (line,) = _lines(plan)
    assert "SITE_A" in line
    assert message in line
    with pytest.raises(ConfigError, match="above the ceiling of a site"):
        cost_estimate.review_plan(plan, {}, 1).refuse_broken_rules("")


@pytest.mark.parametrize(
    "most, pace",
    [
        (Ceilings(), Pace(100)),
        (Ceilings(jobs=5, in_flight=1), Pace(100)),
        (Ceilings(bytes_per_day=10**9), Pace(spread_s=5 * 86400)),
        (Ceilings(mb_per_s=20), Pace(1)),
    ],
)
def test_plan_within_ceilings_is_accepted(tmp_path: Path, most: Ceilings, pace: Pace) -> None:
    assert _lines(_plan(tmp_path, most, pace)) == []


def test_campaign_duration_depends_on_slots_and_spread(tmp_path: Path) -> None:
    plan = make_grid_plan(tmp_path, READING_TEST)
    costs = cost_estimate.estimate_site_costs(plan, {})
    alone = cost_estimate.estimate_campaign_seconds(plan, costs)
    assert alone == costs[0].wall_s
    for in_flight, slots in ((2, 2), (100, 5)):
        plan = _plan(tmp_path, Ceilings(), Pace(in_flight))
        seconds = cost_estimate.estimate_campaign_seconds(plan, costs)
        assert seconds == pytest.approx((alone or 0) / slots)
    spread = _plan(tmp_path, Ceilings(), Pace(spread_s=86400))
    assert cost_estimate.estimate_campaign_seconds(spread, costs) == 86400


def test_concurrency_above_ceiling_is_reported(tmp_path: Path) -> None:
    ceilings = Ceilings(in_flight=3)
    (line,) = cost_estimate.list_concurrency_bounds(_plan(tmp_path, ceilings, Pace(4)))
    assert line.startswith("Site SITE_A allows at most 3 concurrent jobs")
    assert not cost_estimate.list_concurrency_bounds(_plan(tmp_path, ceilings, Pace(3)))


def test_estimate_is_stored_with_the_campaign(tmp_path: Path) -> None:
    site = Site(name="wide", batch="local", doors=make_site().doors)
    plan = make_local_plan(tmp_path / "test", READING_TEST, site)
    review = cost_estimate.find_review(plan, make_settings(tmp_path))
    campaign = submission.record_estimate(plan.make_campaign_row(), review)
    stored = campaign.plan.to_document()
    assert stored.pop("estimate") == {
        "wall_s": review.costs[0].wall_s,
        "cpu_s": review.costs[0].cpu_s,
        "read_bytes": review.costs[0].read_bytes,
    }
    assert stored == plan.request.to_document()


THREADS = READING_TEST.replace("[matrix]", "[matrix]\nthreads = [1, 4]")


def test_job_requests_as_many_cpus_as_threads(tmp_path: Path) -> None:
    plan = make_grid_plan(tmp_path / "test", THREADS)
    assert {cluster.lanes: cluster.jobs for cluster in plan.clusters} == {
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
    timed, checksum = make_grid_plan(tmp_path, bundled).clusters
    assert (timed.cpus, checksum.cpus) == (4, 1)
    narrow = make_grid_site(ceilings=Ceilings(in_flight=1))
    (shared,) = make_grid_plan(tmp_path, THREADS, narrow).clusters
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
