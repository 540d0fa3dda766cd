"""Checks before a submission: permissions of doors, and tests against the contents of datasets."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from plan_factory import (
    make_grid_plan,
    make_grid_site,
    make_local_plan,
    make_manifest,
    make_settings,
    make_site,
)
from repository_code import call_command

from treehammer.collectors.job_spec import START_PATIENCE_S
from treehammer.config import load_settings
from treehammer.datasets.manifest import OLD_NTUPLES, OTHER_TREES, Manifest
from treehammer.errors import ConfigError, DefinitionError, NothingToDoError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition import definition_loader
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import submission
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.cost_estimate import estimate_site_costs
from treehammer.submit.planning.job_planner import WALL_LIMIT_OVERHEAD_S
from treehammer.submit.planning.permission_checks import (
    check_common_start,
    count_loading_jobs,
    list_distance_violations,
    list_load_violations,
    list_setting_violations,
)
from treehammer.submit.planning.plan import BrokenRule, Plan, PlanReview
from treehammer.submit.planning.reading_checks import check_contents, list_content_notes
from treehammer.submit.planning.submission_options import DEFAULT_OPTIONS, Pace, SubmissionOptions
from treehammer.submit.sites.site_model import Ceilings, Door, DoorCache, LoadPermission, Site
from treehammer.submit.sites.site_registry import load_sites

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


def list_violations(plan: Plan) -> list[str]:
    return list_load_violations(plan, count_loading_jobs(plan, 1))


def load_plan(folder: Path, permitted: LoadPermission | None, load: str = CEILING) -> Plan:
    site = make_grid_site()
    doors = (site.doors[0].replace(load=permitted),)
    return make_grid_plan(folder, PERMITTED_LOAD_TEST.format(load), site.replace(doors=doors))


@pytest.mark.parametrize(
    ("permitted", "load", "expected"),
    [
        (None, CEILING, "Door root of site SITE_A permits no load tests: it has no key load"),
        (ENOUGH.replace(opens_per_s=100), CEILING, "at most 100 opens/s (load.opens_per_s)"),
        (ENOUGH.replace(clients=0), CEILING, "at most 0 clients (load.clients)"),
        (ENOUGH, "ceiling = {mb_per_s = 1}", "at most 0 MB/s (load.mb_per_s)"),
        (ENOUGH.replace(writable=""), f"{CEILING}\nwrites = true", "no writing (load.writable)"),
        (ENOUGH, "", "states no bound of its load"),
    ],
)
def test_unpermitted_load_is_refused_before_storing(
    tmp_path: Path, permitted: LoadPermission | None, load: str, expected: str
) -> None:
    plan = load_plan(tmp_path / "test", permitted, load)
    (line,) = list_violations(plan)
    assert expected in line
    settings = make_settings(tmp_path)
    with pytest.raises(ConfigError, match="load that is not permitted") as caught:
        submission.submit_plan(plan, settings)
    assert line in caught.value.hint
    with pytest.raises(NothingToDoError):
        Store.open(settings.database, create=False)


def test_permitted_load_is_accepted_also_on_this_machine(tmp_path: Path) -> None:
    plan = load_plan(tmp_path, ENOUGH, f"{CEILING}\nwrites = true")
    assert not list_violations(plan)
    (job, *_) = plan.jobs
    assert job.spec.load is not None
    assert job.spec.load.writable == "root://site_a.example:1094//scratch/load"
    (door,) = load_sites(make_settings(tmp_path))["local"].doors
    assert door.load is not None
    assert Path(door.writable_url).is_absolute()


def test_writable_area_is_a_path_of_the_storage() -> None:
    for protocol, server in (("root", "root://h:1094/"), ("https", "https://h:8443"), ("file", "")):
        door = Door(name="d", protocol=protocol, prefix=f"{server}/data")
        assert door.replace(load=ENOUGH).writable_url == f"{server}/scratch/load"
        assert door.writable_url == ""


def understated_plan(folder: Path, **values: Any) -> Plan:
    given = {"repeats": 1, "matrix": "", "settings": "", "together": "true", **values}
    options = given.pop("options", DEFAULT_OPTIONS)
    site = make_grid_site()
    permitted = LoadPermission(opens_per_s=200, clients=100, mb_per_s=20)
    site = site.replace(doors=(site.doors[0].replace(load=permitted),))
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
    (line,) = list_violations(understated_plan(tmp_path, **values))
    assert line.startswith("Door root of site SITE_A permits at most ")
    assert expected in line


def test_all_broken_rules_are_named_once() -> None:
    rules = (
        BrokenRule("load", ("Load less.",)),
        BrokenRule("no", ()),
        BrokenRule("site", ("Wait.",), " Or not."),
    )
    with pytest.raises(ConfigError, match="load, site") as caught:
        PlanReview((), rules, ()).refuse_broken_rules("name")
    assert caught.value.hint == "Load less. Wait. Or not."


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
    assert list_violations(plan) == []
    (tmp_path / "jobs").mkdir()
    descriptions = [*render_jobs(plan, tmp_path / "jobs")]
    assert len(descriptions) >= 50
    for description in descriptions:
        load = json.loads(description.inputs["job.json"].read_text())["load"]
        assert load["max_opens_per_s"] == 200 / jobs
        assert load["max_clients"] == 100 // jobs
        assert load["max_mb_per_s"] == 20 / jobs


BUNDLED_LOAD = """
[test]
name = "cached"
payload = "run.sh"
dataset = "tiny"
repeats = 4
[matrix]
door = ["near", "cache"]
bundle = ["door"]
server_cache = ["cold"]
[load]
ceiling = {clients = 2}
"""


def test_job_of_a_load_reads_through_bundled_doors_in_turns(tmp_path: Path) -> None:
    """Each door is checked, the job keeps the limits of both, and only the cache is emptied."""
    site = make_grid_site("near", "cache")
    near, cache = (
        door.replace(load=LoadPermission(opens_per_s=opens, clients=clients, mb_per_s=80))
        for door, opens, clients in zip(site.doors, (0, 40), (8, 4), strict=True)
    )
    cache = cache.replace(cache=DoorCache(files="/cache"))
    options = replace(DEFAULT_OPTIONS, pace=Pace(in_flight=2))
    site = site.replace(doors=(near, cache))
    plan = make_grid_plan(tmp_path / "test", BUNDLED_LOAD, site, options=options)
    assert list_violations(plan) == []
    (tmp_path / "jobs").mkdir()
    descriptions = [*render_jobs(plan, tmp_path / "jobs")]
    assert len(descriptions) == 4
    job = json.loads(descriptions[0].inputs["job.json"].read_text())
    # Two jobs at a time share what each door permits.
    limits = [job["load"][f"max_{key}"] for key in ("opens_per_s", "clients", "mb_per_s")]
    assert limits == [20, 2, 40]
    caches = {e["identity"]["door"]: e["server_cache"] for e in job["executions"]}
    evict = "xrdfs {server} cache evict {path}"
    assert caches == {"near": None, "cache": {"evict": evict, "files": "/cache", "monitor": ""}}
    refused = site.replace(doors=(near, cache.replace(load=None)))
    (line,) = list_violations(make_grid_plan(tmp_path / "no", BUNDLED_LOAD, refused))
    assert line.startswith("Door cache of site SITE_A permits no load tests")
    assert plan.notes == ()
    undeclared = make_grid_plan(tmp_path / "none", BUNDLED_LOAD, make_grid_site("near", "cache"))
    assert undeclared.notes == (
        "Site SITE_A: none of these doors has the key cache in the sites file; server_cache empties no "
        "cache there.",
    )


def test_doors_without_writing_permit_loads_that_only_read(tmp_path: Path) -> None:
    load = PERMITTED_LOAD_TEST.format(f"{CEILING}\nwrites = true")
    site = make_grid_site()
    site = site.replace(doors=(site.doors[0].replace(load=ENOUGH.replace(writable="")),))
    for number, (dataset, direction, count) in enumerate(
        [('dataset = "tiny"\n', "read", 0), ('dataset = "tiny"\n', "write", 1), ("", "read", 1)]
    ):
        matrix = f'{dataset}[matrix]\ndirection = ["{direction}"]\n[load]'
        text = load.replace("[load]", matrix)
        plan = make_grid_plan(tmp_path / str(number), text, site)
        lines = list_violations(plan)
        assert len(lines) == count
        assert all("or only read: -P direction=read -S dataset=NAME" in line for line in lines)


def test_doors_without_limit_of_opens_permit_deletions(tmp_path: Path) -> None:
    text = PERMITTED_LOAD_TEST.format("ceiling = {clients = 9}\nwrites = true")
    text += "[settings]\nclients = 9\nrate_hz = 1000\n"
    for opens, count in ((0.0, 0), (200.0, 1)):
        site = make_grid_site()
        permitted = LoadPermission(opens_per_s=opens, clients=9, writable="/scratch")
        site = site.replace(doors=(site.doors[0].replace(load=permitted),))
        plan = make_grid_plan(tmp_path / str(count), text, site)
        assert len(list_violations(plan)) == count


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
    return site.replace(doors=(site.doors[0].replace(settings=settings),))


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
    local = make_plan(tmp_path / "b", make_tunable_site("server_threads").replace(batch="local"))
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


def make_distant_plan(folder: Path, *doors: Door, matrix: str = "", in_flight: int = 1) -> Plan:
    text = TEST.partition("[matrix]")[0] + f"[matrix]\nlatency_ms = [0, 20]\n{matrix}"
    return make_plan(folder, make_grid_site().replace(doors=doors), text, in_flight)


def test_doors_that_can_have_no_distance_are_refused(tmp_path: Path) -> None:
    doors = (
        Door(name="far", protocol="root", prefix="root://h.example:1094//d"),
        Door(name="tls", protocol="root", prefix="roots://h.example:1094//d"),
        Door(name="linked", protocol="https", prefix="https://h.example/d", link="h.example:9"),
    )
    matrix = 'door = ["far", "tls", "linked"]\n'
    plan = make_distant_plan(tmp_path / "a", *doors, matrix=matrix)
    (line,) = list_distance_violations(plan, 1)
    assert line.startswith("Door tls of site SITE_A cannot be put at a distance")
    assert "does not permit netem" in line
    permitted = [door.replace(netem=not door.link) for door in doors]
    delayed = make_distant_plan(tmp_path / "n", *permitted, matrix=matrix)
    assert not list_distance_violations(delayed, 1)
    assert all(
        execution.netem != bool(execution.link)
        for job in delayed.jobs
        for execution in job.spec.executions
    )
    near = make_grid_site().replace(batch="local", requirements="", doors=permitted[1:2])
    text = TEST.partition("[matrix]")[0] + "[matrix]\nlatency_ms = [0, 20]\n"
    (crowded,) = list_distance_violations(make_plan(tmp_path / "c", near, text), 2)
    assert "2 local jobs run at once" in crowded
    with pytest.raises(ConfigError, match="the distance cannot be set"):
        submission.submit_plan(plan, make_settings(tmp_path))
    (job, *_) = plan.jobs
    assert {execution.link for execution in job.spec.executions} <= {"", "h.example:9"}


def test_jobs_that_would_share_a_link_are_refused(tmp_path: Path) -> None:
    cache, origin = (
        Door(name=name, protocol="root", prefix=f"root://{name}:1094//d", link="h.example:9")
        for name in ("cache", "origin")
    )
    cache = cache.replace(origin="root://origin:1094")
    matrix = 'door = ["cache", "origin"]\n'
    apart = make_distant_plan(tmp_path / "a", cache, origin, matrix=matrix)
    (line,) = list_distance_violations(apart, 1)
    assert "SITE_A/cache, SITE_A/origin" in line
    assert "-P bundle=door" in line
    matrix += 'bundle = ["door"]\n'
    together = make_distant_plan(tmp_path / "b", cache, origin, matrix=matrix)
    assert not list_distance_violations(together, 1)
    (job, *_) = together.jobs
    assert [execution.origin for execution in job.spec.executions].count("root://origin:1094") == 2
    crowded = make_distant_plan(tmp_path / "c", cache, in_flight=3)
    (line,) = list_distance_violations(crowded, 1)
    assert "3 jobs of a door run at once" in line


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
    wait_s = 4 * (100 + START_PATIENCE_S + 40 + 5) + 3 * 60
    assert jobs[-1].wall_limit_s == 4 * (600 + WALL_LIMIT_OVERHEAD_S) + wait_s


def test_variants_in_different_jobs_start_one_after_the_other(tmp_path: Path) -> None:
    text = LOAD_TEST.replace('bundle = ["rate_hz"]', "")
    plan = make_local_plan(tmp_path, text)
    loads = [job.spec.load for job in plan.jobs if job.spec.load]
    assert [load.index for load in loads] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len({load.barrier for load in loads[:4]}) == 1
    assert {(load.folder, load.lead_s) for load in loads} == {("../../starts", 5.0)}
    assert loads[3].barrier != loads[4].barrier
    assert [loads[n].wait_s for n in (3, 4)] == [100, 160], "a failed job frees its slot early"
    assert len(plan.jobs) == 8
    (cluster,) = make_grid_plan(tmp_path, text).clusters
    assert cluster.in_flight == 4, "as many as start together"
    assert cluster.wall_s == max(job.wall_limit_s for job in plan.jobs)


def test_load_without_common_start_has_no_barrier(tmp_path: Path) -> None:
    text = LOAD_TEST.replace("together = true", "").replace('ramp = "3/20s"', "")
    job = next(iter(make_local_plan(tmp_path, text).jobs))
    assert job.spec.load is not None
    assert (job.spec.load.barrier, job.spec.load.lead_s) == ("", 0.0)
    assert job.wall_limit_s == 4 * (600 + WALL_LIMIT_OVERHEAD_S)


def test_site_with_fewer_concurrent_jobs_is_refused(tmp_path: Path) -> None:
    site = make_grid_site(ceilings=Ceilings(in_flight=3))
    plan = make_grid_plan(tmp_path, LOAD_TEST, site)
    (line,) = cost_estimate.list_ceiling_violations(plan, estimate_site_costs(plan, {}))
    assert re.search(r"at most 3 concurrent jobs .* 4 are to start together", line)
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


@pytest.fixture(scope="module")
def definition() -> TestDefinition:
    return definition_loader.load_definition(pinned_tests.SHIPPED_TESTS_FOLDER / "ttree-read")


def make_listed_manifest(**origin: Any) -> Manifest:
    manifest = make_manifest()
    names = {"other_trees": ["Runs"], "branches": ["x", "odd", "y"], "unreadable_branches": {}}
    return replace(manifest, origin={**manifest.origin, **names, **origin})


def with_branches(definition: TestDefinition, tree: str, *branches: str | float) -> TestDefinition:
    test = definition.test.replace(tree=tree)
    matrix = definition.matrix.replace_axis("branches", branches)
    return definition.replace(test=test, matrix=matrix)


def test_existing_tree_and_branches_are_accepted(definition: TestDefinition) -> None:
    manifest = make_listed_manifest(unreadable_branches={"odd": "no"})
    selections = ("x,y", "!odd", "readable", "@list", 0.5)
    check_contents(with_branches(definition, manifest.tree, *selections), [manifest])
    # The branches of another tree, and those of a manifest without names, are not known.
    check_contents(with_branches(definition, "Runs", "z"), [manifest])
    check_contents(with_branches(definition, "any", "z"), [make_manifest()])


def test_bundled_datasets_and_twins_have_the_same_events(definition: TestDefinition) -> None:
    matrix = definition.matrix.replace(bundle=("dataset",))
    twin, other = replace(make_manifest(), name="twin"), replace(make_manifest(999), name="other")
    for change in ({"matrix": matrix}, {"twins": {"rntuple": "twin"}}):
        compared = definition.replace(**change)
        check_contents(compared, [make_manifest(), twin])
        with pytest.raises(DefinitionError, match="1000 events in 1 file and 999 events") as error:
            check_contents(compared, [make_manifest(), twin, other])
        assert "remove dataset from bundle" in error.value.hint
    with pytest.raises(DefinitionError, match="'twin', and it would be no twin") as error:
        compared.check_missing_twin("twin")
    assert f"-S twins.rntuple={definition.dataset}-rntuple" in error.value.hint


@pytest.mark.parametrize(
    ("name", "blocks", "key"),
    [
        ("read-rate", (), "settings.block_kb"),
        ("read-rate", (1, 2500), "matrix.block_kb"),
        ("read-pattern", (), "matrix.chunk_kb"),
    ],
)
def test_reads_larger_than_a_file_are_refused(name: str, blocks: tuple[int, ...], key: str) -> None:
    test = definition_loader.load_definition(pinned_tests.SHIPPED_TESTS_FOLDER / name)
    if blocks:
        matrix = test.matrix.replace_axis("block_kb", blocks)
        test = test.replace(matrix=matrix)
    manifest = make_manifest()
    small, large = (
        replace(manifest, files=tuple(replace(file, size=size) for file in manifest.files))
        for size in (1_000_000, 10_000_000)
    )
    check_contents(test, [large])
    with pytest.raises(DefinitionError, match="larger than the smallest file") as error:
        check_contents(test, [small])
    assert key in str(error.value)
    assert "at most 1000 kB" in error.value.hint


def test_tree_of_an_old_format_is_named(definition: TestDefinition) -> None:
    manifest = make_manifest()
    origin = {**manifest.origin, OTHER_TREES: [], OLD_NTUPLES: ["ntpl"]}
    with pytest.raises(DefinitionError, match="has no readable tree 'ntpl'") as caught:
        check_contents(with_branches(definition, "ntpl", "x"), [replace(manifest, origin=origin)])
    assert "RNTuples before version 1.0 of the format" in caught.value.hint


def test_branches_that_cannot_be_read_are_refused(definition: TestDefinition) -> None:
    manifest = make_listed_manifest(unreadable_branches=dict.fromkeys(("x", "odd", "y"), ""))
    with pytest.raises(DefinitionError, match="leaves none to read"):
        check_contents(with_branches(definition, manifest.tree, "readable"), [manifest])
    manifest = make_listed_manifest(missing_branches={"gone": "b.root"})
    with pytest.raises(DefinitionError, match=r"no branch matches 'go\?e'") as error:
        check_contents(with_branches(definition, manifest.tree, "x,go?e"), [manifest])
    assert error.value.hint == "Branches must be in all files: 'gone' is missing in b.root."


def test_plan_lists_what_the_numbers_of_a_dataset_do_not_show(definition: TestDefinition) -> None:
    manifest = make_listed_manifest(
        missing_branches={"gone": "b.root"},
        branches_of_other_lengths={"y": "4 of 10 entries"},
        friend_trees=["f of other.root"],
    )
    notes = list_content_notes(with_branches(definition, manifest.tree, 0.5), [manifest])
    assert notes == [
        f"Dataset {manifest.name}: 1 branch is missing in some files and never read (gone in b.root); "
        "fractions are of the 3 common branches.",
        f"Dataset {manifest.name}: 1 branch has another number of entries than the tree "
        "(y: 4 of 10 entries).",
        f"Dataset {manifest.name}: friend trees are not read: f of other.root.",
    ]
    # They are of the main tree.
    assert not list_content_notes(with_branches(definition, "Runs", 0.5), [manifest])


TEST_OF_TREE = """\
[test]
name = "mine"
payload = "read.py"
dataset = "{dataset}"
tree = "{tree}"

[matrix]
root = ["6.40.00"]
branches = ["{branches}"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "read.py").write_text("print()\n")
    (tmp_path / "list.txt").write_text("Jet_pt\nMuon_ptt\n")
    return tmp_path


def check(folder: Path, dataset: str, tree: str, branches: str, *options: str) -> Result:
    text = TEST_OF_TREE.format(dataset=dataset, tree=tree, branches=branches)
    (folder / "test.toml").write_text(text)
    settings = load_settings({"cache_dir": folder / "cache"}, environ={}, folder=folder)
    return call_command("tests", settings, "check", str(folder), *options)


def test_names_of_a_shipped_dataset_are_known_before_it_is_made(folder: Path) -> None:
    result = check(folder, "reference-small", "events", "Jet_pt,nMuon,Muon_*")
    assert (result.return_value, result.output) == (0, f"ok {folder}: mine\n")


NO_BRANCH = "dataset 'reference-small': no branch matches 'Muon_ptt'; near: Muon_pt"


def test_all_tests_of_a_folder_are_checked(folder: Path) -> None:
    check(folder, "reference-small", "events", "Jet_pt")
    for name in ("one", "two"):
        shutil.copytree(
            folder, folder / "all" / name, ignore=shutil.ignore_patterns("all", "cache")
        )
    settings = load_settings({"cache_dir": folder / "cache"}, environ={}, folder=folder)
    result = call_command("tests", settings, "check", str(folder / "all"))
    assert result.output == "".join(
        f"ok {folder / 'all' / name}: mine\n" for name in ("one", "two")
    )


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            ("reference-smal", "events", "Jet_pt"),
            "test.dataset: there is no dataset 'reference-smal'. Did you mean 'reference-small'?",
        ),
        (
            ("reference-small", "event", "Jet_pt"),
            "test.tree: dataset 'reference-small' has no tree 'event'. Did you mean 'events'? "
            "It has: events (-S tree=NAME).",
        ),
        (("reference-small", "events", "Jet_pt,Muon_ptt"), f"matrix.branches: {NO_BRANCH}"),
        (("reference-small", "events", "@list.txt"), f"matrix.branches: {NO_BRANCH}"),
    ],
)
def test_unknown_names_are_found(folder: Path, names: tuple[str, str, str], problem: str) -> None:
    result = check(folder, *names)
    assert result.return_value == 2
    assert result.output.startswith(f"{folder / 'test.toml'}: {problem}")
    (document,) = json.loads(check(folder, *names, "--json").output)
    assert not document["ok"]
    assert problem in document["problems"][0]


def test_a_payload_without_the_kit_is_not_started(folder: Path) -> None:
    (folder / "read.py").write_text("import sys\nsys.exit(9)\n")
    result = check(folder, "reference-small", "events", "Jet_pt", "--compile")
    assert (result.return_value, result.output) == (
        0,
        f"ok {folder}: mine (not compiled: its payload has no loop of the kit)\n",
    )
