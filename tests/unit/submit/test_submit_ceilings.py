"""Ceilings of sites."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_factory import (
    READING_TEST,
    make_grid_plan,
    make_grid_site,
    make_local_plan,
    make_settings,
    make_site,
)

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_request, submission
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import Pace, SubmissionOptions
from treehammer.submit.sites.site_model import Ceilings, Site
from treehammer.submit.sites.site_registry import MAX_LOCAL_JOBS, load_sites

#: 4 jobs of 4 executions of 3 passes, and 2 that read all once: 50 × 100 MB.
GB = 5.0


def _plan(folder: Path, ceilings: Ceilings, pace: Pace) -> Plan:
    site = make_grid_site(ceilings=ceilings)
    return make_grid_plan(folder, READING_TEST, site, options=SubmissionOptions(pace))


def _lines(plan: Plan) -> list[str]:
    return cost_estimate.list_ceiling_violations(plan, cost_estimate.estimate_site_costs(plan, {}))


@pytest.mark.parametrize(
    "most, pace, said",
    [
        (Ceilings(jobs=4), Pace(), "at most 4 jobs in one campaign (ceilings.jobs); 5 are"),
        (Ceilings(bytes_per_day=10**9), Pace(), "at most 1 GB a day (ceilings.bytes_per_day); 5 GB are planned: spread them, --spread 120h"),
        (Ceilings(bytes_per_day=2 * 10**9), Pace(spread_s=2 * 86400), "2.5 GB are planned"),
        (Ceilings(mb_per_s=20), Pace(2), "at most 20 MB/s (ceilings.mb_per_s); 2 concurrent jobs would read about"),
        (Ceilings(mb_per_s=1), Pace(), "read less of each file"),
    ],
)  # fmt: skip
def test_plan_above_ceiling_is_refused(
    tmp_path: Path, most: Ceilings, pace: Pace, said: str
) -> None:
    plan = _plan(tmp_path, most, pace)
    assert cost_estimate.estimate_site_costs(plan, {})[0].read_bytes == GB * 1e9
    (line,) = _lines(plan)
    assert "SITE_A" in line
    assert said in line
    with pytest.raises(ConfigError, match="above the ceiling of a site"):
        cost_estimate.check_ceilings(plan, cost_estimate.estimate_site_costs(plan, {}))


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


def test_suggested_in_flight_satisfies_ceiling(tmp_path: Path) -> None:
    (line,) = _lines(_plan(tmp_path, Ceilings(mb_per_s=20), Pace(4)))
    fits = int(line.split("--in-flight ")[1].rstrip("."))
    assert _lines(_plan(tmp_path, Ceilings(mb_per_s=20), Pace(fits))) == []


def test_campaign_duration_depends_on_slots_and_spread(tmp_path: Path) -> None:
    one = make_grid_plan(tmp_path, READING_TEST)
    costs = cost_estimate.estimate_site_costs(one, {})
    alone = cost_estimate.estimate_campaign_seconds(one, costs)
    assert alone == costs[0].wall_s
    two = _plan(tmp_path, Ceilings(), Pace(2))
    assert cost_estimate.estimate_campaign_seconds(two, costs) == pytest.approx((alone or 0) / 2)
    spread = _plan(tmp_path, Ceilings(), Pace(spread_s=86400))
    assert cost_estimate.estimate_campaign_seconds(spread, costs) == 86400


def test_concurrency_above_ceiling_is_reported(tmp_path: Path) -> None:
    ceilings = Ceilings(in_flight=3)
    (line,) = cost_estimate.list_concurrency_bounds(_plan(tmp_path, ceilings, Pace(4)))
    assert line.startswith("Site SITE_A allows at most 3 concurrent jobs")
    assert not cost_estimate.list_concurrency_bounds(_plan(tmp_path, ceilings, Pace(3)))


def test_ceiling_violation_is_refused_before_storing(tmp_path: Path) -> None:
    wide = Site("wide", "local", make_site().doors)
    narrow = Site("narrow", "local", make_site().doors, ceilings=Ceilings(jobs=4))
    plan = make_local_plan(tmp_path / "test", READING_TEST, wide, narrow)
    settings = make_settings(tmp_path)
    assert cost_estimate.list_ceiling_violations(
        plan, campaign_request.estimate_plan_costs(plan, settings)
    ) == ["Site narrow allows at most 4 jobs in one campaign (ceilings.jobs); 5 are planned."]
    with pytest.raises(ConfigError, match=r"at most 4 jobs.*repeats"):
        submission.submit_plan(plan, settings)
    with pytest.raises(NothingToDoError):
        Store.open(settings.database, create=False)
    fits = make_local_plan(tmp_path / "test", READING_TEST, wide)
    cost_estimate.check_ceilings(fits, campaign_request.estimate_plan_costs(fits, settings))


def test_local_site_has_a_ceiling(tmp_path: Path) -> None:
    assert load_sites(make_settings(tmp_path))["local"].ceilings.jobs == MAX_LOCAL_JOBS
