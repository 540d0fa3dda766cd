"""Jobs that watch servers beside a load: places, identity, payloads, limits, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plan_factory import CREATED_US, make_pinned_test, make_settings, make_site

from treehammer.collectors.job_spec import JobSpec
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.job_context import load_job
from treehammer.errors import ConfigError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.model import PinnedTest
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning.cost_estimate import estimate_site_costs
from treehammer.submit.planning.job_sequence import load_watches, make_watch, split_overrides
from treehammer.submit.planning.plan import Plan, make_plan
from treehammer.submit.planning.site_selection import SiteSelection

LOAD_TEST = """
[test]
name = "load"
payload = "run.sh"
repeats = 2
rounds = 2
[matrix]
root = ["none"]
rate_hz = [1, 2]
bundle = ["rate_hz"]
[load]
together = true
ramp = "1/20s"
duration_s = 100
ceiling = {mb_per_s = 1}
"""


def pin_shipped(name: str, folder: Path) -> PinnedTest:
    return pinned_tests.pin_test(name, make_settings(folder))


def make_watched_plan(folder: Path) -> Plan:
    pinned = make_pinned_test(folder, LOAD_TEST)
    server = make_site(name="DISK1")
    watches = [
        make_watch(pin_shipped(name, folder), [server], pinned.definition)
        for name in ("server-watch", "log-parse")
    ]
    software = {"none": providers.parse_software_request("none")}
    return make_plan(
        pinned,
        SiteSelection((make_site("one", name="STORAGE"),)),
        None,
        software,
        created_us=CREATED_US,
        watches=watches,
    )


def test_jobs_that_watch_join_the_start_and_run_the_same_variants(tmp_path: Path) -> None:
    plan = make_watched_plan(tmp_path)
    jobs = list(plan.jobs)
    assert len(plan.jobs) == len(jobs) == 4
    assert [(job.site.name, job.is_watch) for job in jobs] == [
        ("STORAGE", False),
        ("STORAGE", False),
        ("DISK1", True),
        ("DISK1", True),
    ]
    loads = [job.spec.load for job in jobs if job.spec.load]
    assert [(load.index, load.jobs, load.participants) for load in loads] == [
        (index, 2, 4) for index in range(4)
    ]
    assert [load.level_start_s for load in loads] == [0, 20, 0, 0], "a watch lasts for all levels"
    assert len({load.barrier for load in loads}) == len({load.folder for load in loads}) == 1
    orders = {tuple(dict(e.variant)["rate_hz"] for e in job.spec.executions) for job in jobs}
    assert len(orders) == 1
    assert plan.jobs.count_together(make_site(name="DISK1"), ["STORAGE:one"]) == 2


def test_measurements_of_a_watch_are_series_of_their_own(tmp_path: Path) -> None:
    jobs = list(make_watched_plan(tmp_path).jobs)
    identities = [job.spec.executions[0].identity for job in jobs]
    assert [one["test_name"] for one in identities] == ["load", "load", "server-watch", "log-parse"]
    assert [one["site"] for one in identities] == ["STORAGE", "STORAGE", "DISK1", "DISK1"]
    assert {(one["storage_site"], one["door"]) for one in identities} == {("STORAGE", "one")}
    assert [one["job_id"] for one in identities] == [job.spec.job_id for job in jobs]
    assert len({job.spec.job_id for job in jobs}) == 4
    assert len({one["series"] for one in identities}) == 3
    assert len({one["campaign_id"] for one in identities}) == 1


def test_each_job_gets_the_files_of_its_test(tmp_path: Path) -> None:
    plan = make_watched_plan(tmp_path)
    folder = tmp_path / "rendered"
    folder.mkdir()
    for job, description in zip(plan.jobs, render_jobs(plan, folder), strict=True):
        spec = JobSpec.from_json(description.inputs["job.json"].read_text())
        assert spec == job.spec
        assert description.together == 4
        assert (description.inputs[spec.payload.folder] / spec.payload.entry).is_file()
        assert load_job(str(description.inputs["job.json"])) == spec


def test_watching_reads_nothing_and_appears_in_the_costs(tmp_path: Path) -> None:
    plan = make_watched_plan(tmp_path)
    costs = {cost.site: cost for cost in estimate_site_costs(plan, {})}
    assert (costs["DISK1"].jobs, costs["DISK1"].read_bytes) == (2, 0)
    assert costs["STORAGE"].jobs == 2
    assert json.loads(plan.request)["watch"][0]["sites"] == ["DISK1"]


def test_settings_reach_the_tests_that_have_them(tmp_path: Path) -> None:
    own, watch = split_overrides({"repeats": "3", "watch.log": "/x", "watch.server": "d1"})
    assert own == {"repeats": "3"}
    loading = make_pinned_test(tmp_path, LOAD_TEST).definition
    names, settings = ("server-watch", "log-parse"), make_settings(tmp_path)
    watches = load_watches(names, [make_site()], watch, loading, settings)
    known = [dict(one.pinned.definition.settings) for one in watches]
    assert [(one.get("log"), one["server"]) for one in known] == [(None, "d1"), ("/x", "d1")]
    assert {one.pinned.definition.load for one in watches} == {loading.load}


@pytest.mark.parametrize(
    ("specs", "sites", "settings", "message"),
    [
        (["server-watch"], [], {}, "no server named"),
        ([], [make_site()], {}, "nothing watches"),
        ([], [], {"log": "/x"}, "nothing watches"),
        (["server-watch"], [make_site()], {"lock": "/x"}, "no test of --watch has this key"),
        (["server-watch"] * 2, [make_site()], {}, "two tests have the same name"),
        (["open-rate"], [make_site()], {}, "cannot watch a server"),
    ],
)
def test_useless_options_are_refused(
    specs: list[str], sites: list[object], settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    loading = make_pinned_test(tmp_path, LOAD_TEST).definition
    with pytest.raises(ConfigError, match=message):
        load_watches(specs, sites, settings, loading, make_settings(tmp_path))  # type: ignore[arg-type]


def test_clients_without_a_common_start_are_refused(tmp_path: Path) -> None:
    pinned = make_pinned_test(tmp_path, LOAD_TEST)
    assert pinned.definition.load
    alone = replace(pinned.definition, load=replace(pinned.definition.load, together=False))
    watch = pin_shipped("server-watch", tmp_path)
    with pytest.raises(ConfigError, match="only after a common start"):
        make_watch(watch, [make_site()], alone)
    with pytest.raises(ConfigError, match="only after a common start"):
        make_watch(watch, [make_site()], replace(alone, load=None))
