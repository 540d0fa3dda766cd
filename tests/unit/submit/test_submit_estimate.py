"""Cost estimates of plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_user import LocalUser
from plan_factory import READING_TEST, SHELL_TEST, make_local_plan, make_manifest

from treehammer.collectors.job_spec import ExecutionSpec
from treehammer.datasets.manifest import RECORDING
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.cost_estimate import (
    ASSUMED_BASIS,
    LOAD_BASIS,
    MEASURED_BASIS,
    UNKNOWN_BASIS,
    ExecutionCost,
)

LOAD_TEST = f"""{SHELL_TEST}
[load]
duration_s = 30
ceiling = {{mb_per_s = 20}}
"""


def execution(tmp_path: Path, **axes: Any) -> ExecutionSpec:
    spec = make_local_plan(tmp_path).jobs[0].spec.executions[0]
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


def test_checksum_cost_is_not_used_for_timed_execution(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path, READING_TEST)
    checksum = plan.jobs[-1].spec.executions[0]
    history = {f"checksum/{checksum.identity['series']}": ExecutionCost(1e6, 1e6, MEASURED_BASIS)}
    timed = replace(checksum, kind="timed")
    cost = cost_estimate.estimate_execution(timed, plan.manifest, history)
    assert cost is not None
    assert cost.basis == ASSUMED_BASIS


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


@pytest.mark.parametrize(("branches", "passes"), [(1.0, 2.025), (0.02, 15.0), (0.1, 4.25)])
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
