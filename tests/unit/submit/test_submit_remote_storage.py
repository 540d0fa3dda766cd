"""Jobs of one site that read the storage of another (``--from``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from measurement_factory import make_campaign_row
from plan_factory import READING_TEST, make_grid_plan, make_grid_site

from treehammer.submit.campaigns.campaign_outcome import rerun_command
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.plan import Plan, plan_clusters
from treehammer.submit.planning.submission_options import Pace, SubmissionOptions
from treehammer.submit.sites.site_model import Ceilings, Door

A, B, C = (make_grid_site(name=f"SITE_{letter}") for letter in "ABC")


def remote_plan(folder: Path, pace: Pace | None = None, **changes: Any) -> Plan:
    """Plan jobs at A and C that read the storage of A and B; ``changes`` apply to B."""
    return make_grid_plan(
        folder,
        READING_TEST,
        A,
        replace(B, **changes),
        from_sites=(A, C),
        options=SubmissionOptions(pace or Pace()),
    )


def test_each_site_reads_each_storage_site(tmp_path: Path) -> None:
    plan = remote_plan(tmp_path)
    pairs = {(job.spec.site, job.spec.storage_site, job.spec.door_url) for job in plan.jobs}
    assert pairs == {
        (site, storage.name, storage.doors[0].prefix)
        for site in ("SITE_A", "SITE_C")
        for storage in (A, B)
    }
    assert [site.name for site in plan.sites] == ["SITE_A", "SITE_C"]
    assert len({job.spec.job_id for job in plan.jobs}) == len(plan.jobs)
    for job in plan.jobs:
        (execution, *_) = job.spec.executions
        assert execution.identity["site"] == job.spec.site
        assert execution.identity["storage_site"] == job.spec.storage_site
        assert execution.files[0].url.startswith(job.spec.door_url)


def list_series(plan: Plan, site: str, storage: str) -> set[object]:
    return {
        execution.identity["series"]
        for job in plan.jobs
        if (job.spec.site, job.spec.storage_site) == (site, storage)
        for execution in job.spec.executions
    }


def test_own_storage_keeps_series_and_others_have_their_own(tmp_path: Path) -> None:
    local = make_grid_plan(tmp_path / "local", READING_TEST, A)
    remote = remote_plan(tmp_path / "remote")
    own = list_series(local, "SITE_A", "SITE_A")
    assert own == list_series(remote, "SITE_A", "SITE_A")
    for site, storage in (("SITE_A", "SITE_B"), ("SITE_C", "SITE_A"), ("SITE_C", "SITE_B")):
        others = list_series(remote, site, storage)
        assert len(others) == len(own)
        assert own.isdisjoint(others)


def test_each_storage_site_has_its_own_cluster(tmp_path: Path) -> None:
    clusters = {(c.site.name, *c.doors) for c in plan_clusters(remote_plan(tmp_path))}
    assert clusters == {
        ("SITE_A", "root"),
        ("SITE_A", "SITE_B:root"),
        ("SITE_C", "SITE_A:root"),
        ("SITE_C", "SITE_B:root"),
    }


def test_traffic_counts_at_storage_and_jobs_at_reader(tmp_path: Path) -> None:
    def violations(plan: Plan) -> list[str]:
        costs = cost_estimate.estimate_site_costs(plan, {})
        return cost_estimate.list_ceiling_violations(plan, costs)

    limits = Ceilings(jobs=1, bytes_per_day=10**9)
    (traffic,) = violations(remote_plan(tmp_path, ceilings=limits))
    # 5 GB for each of two sites.
    assert "SITE_B allows at most 1 GB a day" in traffic
    assert "10 GB are planned" in traffic
    reader = replace(C, ceilings=Ceilings(jobs=9, bytes_per_day=10**9))
    (jobs,) = violations(make_grid_plan(tmp_path, READING_TEST, A, B, from_sites=(reader,)))
    assert "SITE_C allows at most 9 jobs in one campaign (ceilings.jobs); 10 are planned" in jobs


def test_rate_at_storage_sums_its_readers(tmp_path: Path) -> None:
    def violations(mb_per_s: float) -> list[str]:
        plan = remote_plan(tmp_path, ceilings=Ceilings(mb_per_s=mb_per_s))
        costs = cost_estimate.estimate_site_costs(plan, {})
        return cost_estimate.list_ceiling_violations(plan, costs)

    plan = make_grid_plan(tmp_path, READING_TEST, B)
    (cost,) = cost_estimate.estimate_site_costs(plan, {})
    one_reader = (cost.read_bytes or 0) / (cost.wall_s or 1) / 1e6
    # Jobs at two sites, each of which reads two storage sites in turn at two jobs at a time.
    assert violations(0.99 * 2 * one_reader)
    assert not violations(1.01 * 2 * one_reader)


def test_remote_jobs_avoid_paths_by_default(tmp_path: Path) -> None:
    doors = (Door("disk", "file", "/disk"), *B.doors)
    plan = remote_plan(tmp_path, doors=doors)
    assert {job.spec.door for job in plan.jobs} == {"root"}
    assert not plan.notes
    (job, *_) = make_grid_plan(tmp_path, READING_TEST, replace(B, doors=doors)).jobs
    assert job.spec.door == "disk"
    notes = remote_plan(tmp_path, doors=doors[:1]).notes
    assert len(notes) == 2
    assert "Door disk of site SITE_B is a path, which the nodes of site SITE_A" in notes[0]


def test_rerun_repeats_both_kinds_of_sites(tmp_path: Path) -> None:
    plan = remote_plan(tmp_path)
    row = make_campaign_row(plan=plan.make_campaign_row().plan)
    assert "--sites SITE_A,SITE_B --from SITE_A,SITE_C" in rerun_command(row)
