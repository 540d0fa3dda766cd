"""Server settings that doors permit tests to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plan_factory import make_grid_plan, make_grid_site, make_settings

from treehammer.errors import ConfigError
from treehammer.submit.campaigns import submission
from treehammer.submit.planning.permission_checks import list_setting_violations
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, Pace
from treehammer.submit.sites.site_model import Site
from treehammer.submit.sites.sites_file import format_sites_file, parse_sites_file

TEST = """
[test]
name = "queue"
payload = "run.sh"
[matrix]
server_threads = [20, 70]
bundle = ["server_threads"]
[before]
command = "run.sh"
settings = ["server_threads"]
timeout_s = 100
"""
LOAD = "[load]\ntogether = true\nceiling = {clients = 1}\n"


def make_tunable_site(*settings: str) -> Site:
    site = make_grid_site()
    return replace(site, doors=(replace(site.doors[0], settings=settings),))


def make_plan(folder: Path, site: Site, text: str = TEST, in_flight: int = 1) -> Plan:
    options = replace(DEFAULT_OPTIONS, pace=Pace(in_flight))
    return make_grid_plan(folder, text, site, options=options)


def test_change_without_permission_is_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "test", make_tunable_site("readahead_kb"))
    (line,) = list_setting_violations(plan, 1)
    assert line == (
        "Door root of site SITE_A does not permit changing server_threads. With the site's consent add "
        'settings = ["readahead_kb", "server_threads"] to this door in the sites file.'
    )
    with pytest.raises(ConfigError, match="server settings cannot be changed") as caught:
        submission.submit_plan(plan, make_settings(tmp_path))
    assert line in caught.value.hint


def test_permitted_change_enters_the_job(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, make_tunable_site("server_threads"))
    assert not list_setting_violations(plan, 1)
    (job,) = plan.jobs
    before = job.spec.payload.before
    assert before is not None
    assert (before.command, before.settings, before.timeout_s) == (
        "run.sh",
        {"server_threads": 20},
        100,
    )
    assert len(job.spec.executions) == 4
    # Four executions, and the end.
    assert job.wall_limit_s == 4 * (600 + 120) + 5 * 100
    assert type(job.spec).from_json(job.spec.to_json()) == job.spec


def test_jobs_that_overlap_are_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "a", make_tunable_site("server_threads"), in_flight=3)
    (line,) = list_setting_violations(plan, 1)
    assert "3 jobs of a door run at once" in line
    local = make_plan(tmp_path / "b", replace(make_tunable_site("server_threads"), batch="local"))
    assert not list_setting_violations(local, 1)
    (line,) = list_setting_violations(local, 2)
    assert line.endswith("--local-slots 1.")
    together = make_plan(
        tmp_path / "c", make_tunable_site("server_threads"), TEST + LOAD, in_flight=3
    )
    assert not list_setting_violations(together, 1)
    readers = tuple(make_grid_site(name=name) for name in ("SITE_B", "SITE_C"))
    remote = make_grid_plan(
        tmp_path / "d", TEST, make_tunable_site("server_threads"), from_sites=readers
    )
    (line,) = list_setting_violations(remote, 1)
    assert "Jobs use site SITE_A in 2 ways at once" in line


def test_sites_file_keeps_settings(tmp_path: Path) -> None:
    site = replace(
        make_tunable_site("server_threads", "readahead_kb"), requirements="", software={}
    )
    text = format_sites_file([replace(site, batch="local")], [], tmp_path / "sites.toml")
    assert "settings = [" in text
    assert parse_sites_file(text, tmp_path / "sites.toml").sites["SITE_A"].doors == site.doors
