"""Load that doors permit to load tests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_factory import make_grid_plan, make_grid_site, make_settings

from treehammer.errors import ConfigError, NothingToDoError, SitesError
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import submission
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning.permission_checks import list_load_violations
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, Pace
from treehammer.submit.sites.site_model import Door, LoadPermission
from treehammer.submit.sites.site_registry import load_sites
from treehammer.submit.sites.sites_file import format_sites_file, parse_sites_file

PERMITTED_LOAD_TEST = """
[test]
name = "opens"
payload = "run.sh"
[load]
together = true
{}
"""
#: A test that understates its load: 5000 opens/s at a door that permits 200.
UNDERSTATED = """
[test]
name = "opens"
payload = "run.sh"
repeats = {repeats}
[matrix]
{matrix}
[settings]
{settings}
[load]
together = {together}
ceiling = {{opens_per_s = 1}}
"""
CEILING = "ceiling = {opens_per_s = 200, clients = 100}"
ENOUGH = LoadPermission(opens_per_s=200, clients=100, writable="/scratch/load")


def load_plan(folder: Path, permitted: LoadPermission | None, load: str = CEILING) -> Plan:
    site = make_grid_site()
    doors = (replace(site.doors[0], load=permitted),)
    return make_grid_plan(folder, PERMITTED_LOAD_TEST.format(load), replace(site, doors=doors))


@pytest.mark.parametrize(
    ("permitted", "load", "expected"),
    [
        (None, CEILING, "Door root of site SITE_A permits no load tests: it has no key load"),
        (replace(ENOUGH, opens_per_s=100), CEILING, "at most 100 opens/s (load.opens_per_s)"),
        (replace(ENOUGH, clients=0), CEILING, "at most 0 clients (load.clients)"),
        (ENOUGH, "ceiling = {mb_per_s = 1}", "at most 0 MB/s (load.mb_per_s)"),
        (replace(ENOUGH, writable=""), f"{CEILING}\nwrites = true", "no writing (load.writable)"),
        (ENOUGH, "", "states no bound of its load"),
    ],
)
def test_unpermitted_load_is_refused_before_storing(
    tmp_path: Path, permitted: LoadPermission | None, load: str, expected: str
) -> None:
    plan = load_plan(tmp_path / "test", permitted, load)
    (line,) = list_load_violations(plan)
    assert expected in line
    settings = make_settings(tmp_path)
    with pytest.raises(ConfigError, match="load that is not permitted") as caught:
        submission.submit_plan(plan, settings)
    assert line in caught.value.hint
    with pytest.raises(NothingToDoError):
        Store.open(settings.database, create=False)


def test_permitted_load_is_accepted(tmp_path: Path) -> None:
    plan = load_plan(tmp_path, ENOUGH, f"{CEILING}\nwrites = true")
    assert not list_load_violations(plan)
    (job, *_) = plan.jobs
    assert job.spec.load is not None
    assert job.spec.load.writable == "root://site_a.example:1094//scratch/load"


def test_own_machine_permits_load(tmp_path: Path) -> None:
    (door,) = load_sites(make_settings(tmp_path))["local"].doors
    assert door.load is not None
    assert Path(door.writable_url).is_absolute()


@pytest.mark.parametrize(
    ("door", "url"),
    [
        (Door("r", "root", "root://h:1094//data"), "root://h:1094//scratch/load"),
        (Door("w", "https", "https://h:8443/data"), "https://h:8443/scratch/load"),
        (Door("f", "file", "/mnt/data"), "/scratch/load"),
    ],
)
def test_writable_area_is_a_path_of_the_storage(door: Door, url: str) -> None:
    assert replace(door, load=ENOUGH).writable_url == url
    assert door.writable_url == ""


def test_sites_file_keeps_permissions(tmp_path: Path) -> None:
    site = make_grid_site(requirements="", software={})
    doors = (replace(site.doors[0], load=ENOUGH), Door("other", "root", "root://h//d"))
    path = tmp_path / "sites.toml"
    text = format_sites_file([replace(site, batch="local", doors=doors)], [], path)
    assert parse_sites_file(text, path).sites["SITE_A"].doors == doors


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("{opens = 3}", "unknown key.*opens"),
        ("{clients = -1}", "clients"),
        ('{writable = "scratch"}', "not an absolute path"),
        ('{writable = "/a/../b"}', "not an absolute path"),
    ],
)
def test_wrong_permission_is_reported(tmp_path: Path, load: str, expected: str) -> None:
    text = f"""
[[sites.A.doors]]
name = "root"
protocol = "root"
prefix = "root://h//d"
load = {load}
"""
    with pytest.raises(SitesError, match=expected):
        parse_sites_file(text, tmp_path / "sites.toml")


def understated_plan(folder: Path, **values: Any) -> Plan:
    given = {"repeats": 1, "matrix": "", "settings": "", "together": "true", **values}
    options = given.pop("options", DEFAULT_OPTIONS)
    site = make_grid_site()
    permitted = LoadPermission(opens_per_s=200, clients=100, mb_per_s=20)
    site = replace(site, doors=(replace(site.doors[0], load=permitted),))
    return make_grid_plan(folder, UNDERSTATED.format(**given), site, options=options)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"matrix": "clients = [50]\nrate_hz = [100]"}, "ask for 5,000"),
        ({"settings": "clients = 50\nrate_hz = 100"}, "ask for 5,000"),
        ({"matrix": "clients = [1, 50]\nrate_hz = [1, 100]"}, "ask for 5,000"),
        ({"matrix": "rate_hz = [201]"}, "ask for 201"),
        ({"repeats": 50, "matrix": "clients = [2]\nrate_hz = [50]"}, "50 jobs at a time"),
        ({"matrix": "clients = [101]"}, "at most 100 clients"),
        ({"repeats": 101}, "at most 100 clients"),
        ({"settings": "clients = 100\nperiod_s = 10\nblock_kb = 2500"}, "at most 20 MB/s"),
    ],
)
def test_understated_load_is_refused(tmp_path: Path, values: Any, expected: str) -> None:
    (line,) = list_load_violations(understated_plan(tmp_path, **values))
    assert line.startswith("Door root of site SITE_A permits at most ")
    assert expected in line


@pytest.mark.parametrize(
    ("values", "jobs"),
    [
        ({"repeats": 50, "matrix": "clients = [2]\nrate_hz = [2]"}, 50),
        ({"repeats": 50, "matrix": "clients = [100]\nrate_hz = [2]", "together": "false"}, 1),
        (
            {
                "repeats": 50,
                "matrix": "clients = [10, 20]",
                "together": "false",
                "options": replace(DEFAULT_OPTIONS, pace=Pace(in_flight=5)),
            },
            5,
        ),
    ],
)
def test_jobs_share_the_ceiling(tmp_path: Path, values: Any, jobs: int) -> None:
    """Jobs that run one after the other have all of it, each."""
    plan = understated_plan(tmp_path / "test", **values)
    assert list_load_violations(plan) == []
    (tmp_path / "jobs").mkdir()
    descriptions = [*render_jobs(plan, tmp_path / "jobs")]
    assert len(descriptions) >= 50
    for description in descriptions:
        load = json.loads(description.inputs["job.json"].read_text())["load"]
        assert load["max_opens_per_s"] == 200 / jobs
        assert load["max_clients"] == 100 // jobs
        assert load["max_mb_per_s"] == 20 / jobs


def test_doors_without_limit_of_opens_permit_deletions(tmp_path: Path) -> None:
    text = PERMITTED_LOAD_TEST.format("ceiling = {clients = 9}\nwrites = true")
    text += "[settings]\nclients = 9\nrate_hz = 1000\n"
    for opens, count in ((0.0, 0), (200.0, 1)):
        site = make_grid_site()
        permitted = LoadPermission(opens_per_s=opens, clients=9, writable="/scratch")
        site = replace(site, doors=(replace(site.doors[0], load=permitted),))
        plan = make_grid_plan(tmp_path / str(count), text, site)
        assert len(list_load_violations(plan)) == count
