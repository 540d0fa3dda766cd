"""Plans of any size: memory is independent of repeats, and ceilings hold."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from plan_factory import READING_TEST, SHELL_TEST, make_local_plan, make_settings, make_site

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.write.store import Store
from treehammer.submit.lifecycle import campaign_request, submission
from treehammer.submit.planning import ceiling_checks
from treehammer.submit.sites.site_model import Ceilings, Site
from treehammer.submit.sites.site_registry import MAX_LOCAL_JOBS, load_sites


def measure_peak_memory(folder: Path, repeats: int) -> int:
    """Iterate over all jobs, as storing does, and return the peak of allocated bytes."""
    text = SHELL_TEST.replace("[matrix]", f"repeats = {repeats}\n[matrix]")
    tracemalloc.start()
    try:
        plan = make_local_plan(folder, text)
        assert sum(1 for _ in plan.make_job_rows()) == len(plan.jobs) == 2 * repeats
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_independent_of_repeats(tmp_path: Path) -> None:
    measure_peak_memory(tmp_path, 1)  # fills caches
    few, many = (measure_peak_memory(tmp_path, repeats) for repeats in (20, 220))
    assert many - few < 400 * 500, "a job takes several kilobytes"


def test_job_sequence_is_reproducible(tmp_path: Path) -> None:
    jobs = make_local_plan(tmp_path).jobs
    assert list(jobs) == list(jobs)
    assert [jobs[place] for place in range(len(jobs))] == list(jobs)
    assert jobs[-1] == list(jobs)[-1]
    with pytest.raises(IndexError):
        jobs[len(jobs)]


def test_kinds_cover_all_jobs(tmp_path: Path) -> None:
    text = READING_TEST.replace(
        "cache_mb = [0, 30]", 'door = ["file", "https"]\ncache_mb = [0, 30]'
    )
    plan = make_local_plan(
        tmp_path, text, make_site("file"), make_site("file", "https", name="far")
    )
    assert (
        sum(times for _, times in plan.jobs.iterate_kinds())
        == len(list(plan.jobs))
        == len(plan.jobs)
    )
    assert plan.execution_count == sum(len(job.spec.executions) for job in plan.jobs)


def test_ceiling_violation_is_refused_before_storing(tmp_path: Path) -> None:
    wide = Site("wide", "local", make_site().doors)
    narrow = Site("narrow", "local", make_site().doors, ceilings=Ceilings(jobs=4))
    plan = make_local_plan(tmp_path / "test", READING_TEST, wide, narrow)
    settings = make_settings(tmp_path)
    assert ceiling_checks.list_ceiling_violations(
        plan, campaign_request.estimate_plan_costs(plan, settings)
    ) == ["Site narrow allows at most 4 jobs in one campaign (ceilings.jobs); 5 are planned."]
    with pytest.raises(ConfigError, match=r"at most 4 jobs.*repeats"):
        submission.submit_plan(plan, settings)
    with pytest.raises(NothingToDoError):
        Store.open(settings.database, create=False)
    fits = make_local_plan(tmp_path / "test", READING_TEST, wide)
    ceiling_checks.check_ceilings(fits, campaign_request.estimate_plan_costs(fits, settings))


def test_local_site_has_a_ceiling(tmp_path: Path) -> None:
    assert load_sites(make_settings(tmp_path))["local"].ceilings.jobs == MAX_LOCAL_JOBS
