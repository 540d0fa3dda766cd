"""Plans: jobs, their order, plan-owned values of measurements, and jobs that watch servers."""

from __future__ import annotations

import getpass
import json
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from plan_factory import (
    CREATED_US,
    READING_TEST,
    SHELL_TEST,
    make_local_plan,
    make_manifest,
    make_pinned_test,
    make_settings,
    make_site,
    make_software_requests,
    plan_inputs,
)

from treehammer.collectors.job_spec import ExecutionSpec, JobSpec
from treehammer.collectors.record.measurement_record import describe_value_error
from treehammer.collectors.record.metric_catalogue import metrics_owned_by
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.job_runner import load_job
from treehammer.errors import ConfigError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning.cost_estimate import estimate_site_costs
from treehammer.submit.planning.job_planner import JobInputs
from treehammer.submit.planning.plan import Plan, make_plan
from treehammer.submit.planning.server_watch import load_watches, make_watch
from treehammer.submit.planning.site_selection import SiteSelection, select_doors
from treehammer.submit.planning.submission_options import CampaignRequest
from treehammer.submit.sites.replicas import NO_RUCIO_PLACEMENT, RucioPlacement


def test_jobs_are_groups_by_repeats_plus_checksum(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path)
    *timed, checksum = plan.jobs
    assert [job.repeat for job in timed] == [1, 1, 2, 2], "each repeat covers all variants first"
    assert Counter(job.label for job in timed) == {"cache_mb=0": 2, "cache_mb=30": 2}
    for job in timed:
        rounds = [[e.variant["root"] for e in job.spec.executions if e.round == r] for r in (1, 2)]
        assert rounds[0] == rounds[1][::-1]
        assert sorted(map(str, rounds[0])) == ["6.38.00", "6.40.00"]
        assert job.wall_limit_s > 4 * job.spec.limits.wall_s
    assert [e.variant["root"] for e in checksum.spec.executions] == ["6.38.00", "6.40.00"]
    assert all(e.passes == 1 and e.kind == "checksum" for e in checksum.spec.executions)
    (file,) = checksum.spec.executions[0].files
    assert (file.url, file.size) == ("/file/data/tiny/tiny.root", 100_000_000)
    row = plan.make_campaign_row()
    assert row.plan.submitter == getpass.getuser()
    assert (row.planned_jobs, row.planned_measurements) == (5, 18)
    assert {job.state for job in plan.make_job_rows()} == {"queued"}
    assert sum(job.planned_measurements for job in plan.make_job_rows()) == 18
    assert plan.campaign_name.startswith("reads@")
    assert plan.campaign_name.endswith("2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("axis", "accesses"),
    [
        ("", ["direct", "direct"]),
        ('access = ["direct", "staged"]', ["direct", "direct"]),
        ('access = ["staged"]', ["staged", "staged"]),
        (
            'access = ["direct", "staged"]\n[[exclude]]\nroot = "6.40.00"\naccess = "direct"',
            ["direct", "staged"],
        ),
    ],
)
def test_values_are_verified_by_an_access_that_the_release_uses(
    axis: str, accesses: list[str], tmp_path: Path
) -> None:
    *_, checksum = make_local_plan(tmp_path, READING_TEST + axis).jobs
    assert [e.variant["access"] for e in checksum.spec.executions] == accesses


def test_plan_values_are_complete_and_typed(tmp_path: Path) -> None:
    workers = {"measurement_id", "attempt"}
    for job in make_local_plan(tmp_path).jobs:
        for execution in job.spec.executions:
            for metric in metrics_owned_by("plan"):
                if metric.name in workers:
                    continue
                value = execution.identity[metric.name]
                if value is None:
                    assert not metric.required, metric.name
                else:
                    assert not describe_value_error(metric, value), metric.name


def test_identities_are_stable_and_differ_between_requests(tmp_path: Path) -> None:
    first, again = make_local_plan(tmp_path), make_local_plan(tmp_path)
    later = make_local_plan(tmp_path, READING_TEST, created_us=CREATED_US + 1)
    assert first == again
    assert first.campaign_id != later.campaign_id
    ids = [job.spec.job_id for job in (*first.jobs, *later.jobs)]
    assert len(set(ids)) == len(ids)
    orders = [[e.variant for e in job.spec.executions] for job in first.jobs]
    assert orders == [[e.variant for e in job.spec.executions] for job in later.jobs], (
        "orders depend on the seed of the test, not on the campaign"
    )


def test_document_names_the_pinned_test_and_its_files(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path)
    pinned, test = plan.pinned_test, plan.make_campaign_row().plan.test
    assert test is not None
    assert (test.commit, test.path, test.files) == (pinned.commit, pinned.path, pinned.hashes)
    assert "test.toml" in test.files


def test_cold_executions_make_one_pass(tmp_path: Path) -> None:
    text = READING_TEST.replace("cache_mb = [0, 30]", 'cache = ["warm", "cold"]')
    passes = {
        (e.variant["cache"], e.passes, e.identity["passes_planned"])
        for job in make_local_plan(tmp_path, text).jobs
        for e in job.spec.executions
        if e.kind == "timed"
    }
    assert passes == {("warm", 3, 3), ("cold", 1, 1)}


def test_executable_without_dataset_is_planned(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path, SHELL_TEST)
    assert [job.kind for job in plan.jobs] == ["timed", "timed"]
    execution = next(iter(plan.jobs)).spec.executions[0]
    assert execution.files == ()
    assert execution.identity["dataset"] is None
    assert execution.software.provider == "none"


def test_missing_door_is_noted_and_skipped(tmp_path: Path) -> None:
    text = READING_TEST.replace("cache_mb = [0, 30]", 'door = ["file", "https"]')
    plan = make_local_plan(
        tmp_path, text, make_site("file"), make_site("file", "https", name="far")
    )
    assert {(job.site.name, job.spec.door) for job in plan.jobs} == {
        ("local", "file"),
        ("far", "file"),
        ("far", "https"),
    }
    assert plan.notes == ("Site local has no door 'https' (known: file).",)
    assert sum(times for _, times in plan.jobs.iterate_kinds()) == len(plan.jobs)
    assert len(list(plan.jobs)) == len(plan.jobs)
    assert plan.execution_count == sum(len(job.spec.executions) for job in plan.jobs)


FORMATS_TEST = READING_TEST.replace(
    'bundle = ["root"]',
    'format = ["ttree", "rntuple"]\nbundle = ["format"]\n[twins]\nrntuple = "tiny-rntuple"',
)


def test_formats_have_separate_datasets_and_checksums(tmp_path: Path) -> None:
    pinned = make_pinned_test(tmp_path, FORMATS_TEST)
    twin = replace(make_manifest(), name="tiny-rntuple", origin={"from": "tiny"})
    twin = replace(twin, files=(replace(twin.files[0], size=60_000_000),))
    manifests = [make_manifest(), twin]
    plan = plan_inputs(pinned, JobInputs(make_software_requests(pinned), {}, manifests))
    executions = [execution for job in plan.jobs for execution in job.spec.executions]
    assert {
        (execution.variant["format"], execution.identity["dataset"]) for execution in executions
    } == {("ttree", "tiny"), ("rntuple", "tiny-rntuple")}
    for execution in executions:
        assert f"/{execution.identity['dataset']}/" in execution.files[0].url
        assert execution.identity["content_hash"] == make_manifest().hash
        assert (execution.identity["dataset_hash"] == twin.hash) == (
            execution.variant["format"] == "rntuple"
        )
    checksum = [execution for execution in executions if execution.kind == "checksum"]
    assert [(execution.variant["root"], execution.variant["format"]) for execution in checksum] == [
        (release, format_) for release in ("6.38.00", "6.40.00") for format_ in ("ttree", "rntuple")
    ]


@pytest.mark.parametrize(
    "payload, formats, releases",
    [
        ("columns.run_uproot()", ["ttree", "rntuple"], 2),
        ("columns.run_dataframe()", ["ttree", "rntuple"], 2),
        ("subprocess.run(PROGRAM)", ["ttree", "rntuple"], 0),
        ("columns.run_uproot()", ["ttree"], 0),
    ],
)
def test_uproot_proves_the_values_of_two_formats(
    tmp_path: Path, payload: str, formats: list[str], releases: int
) -> None:
    text = FORMATS_TEST.replace(
        '"6.38.00", "6.40.00"', '"pypi:uproot==5.7.5", "pypi:uproot==5.7.6"'
    )
    if len(formats) == 1:
        text = text.replace('["ttree", "rntuple"]', '["ttree"]').partition("[twins]")[0]
    pinned = make_pinned_test(tmp_path, text)
    (pinned.folder / "read.py").write_text(payload)
    manifests = [make_manifest(), replace(make_manifest(), name="tiny-rntuple")]
    plan = plan_inputs(pinned, JobInputs(make_software_requests(pinned), {}, manifests))
    executions = [execution for job in plan.jobs for execution in job.spec.executions]
    assert sum(execution.kind == "checksum" for execution in executions) == releases * len(formats)


DATASETS_TEST = READING_TEST.replace('dataset = "tiny"\n', "").replace(
    "[matrix]", '[matrix]\ndataset = ["tiny", "other"]'
)


def plan_two_datasets(folder: Path, placement: RucioPlacement = NO_RUCIO_PLACEMENT) -> Plan:
    pinned = make_pinned_test(folder, DATASETS_TEST)
    manifest = make_manifest()
    other = replace(manifest, name="other", files=(replace(manifest.files[0], size=9_000_000),))
    software = make_software_requests(pinned)
    return plan_inputs(pinned, JobInputs(software, {}, [manifest, other], placement))


def test_datasets_have_their_jobs_files_and_series(tmp_path: Path) -> None:
    plan = plan_two_datasets(tmp_path)
    assert len(plan.jobs) == len([*plan.jobs]) == 9
    series_by_dataset: dict[str, set[object]] = {"tiny": set(), "other": set()}
    for job in plan.jobs:
        of_job = {str(execution.identity["dataset"]) for execution in job.spec.executions}
        assert len(of_job) == 1 or job.kind == "checksum"
        for execution in job.spec.executions:
            name = str(execution.identity["dataset"])
            assert f"/{name}/" in execution.files[0].url
            assert execution.identity["content_hash"] == execution.identity["dataset_hash"]
            series_by_dataset[name].add(execution.identity["series"])
    assert not series_by_dataset["tiny"] & series_by_dataset["other"]
    alone = make_local_plan(tmp_path / "alone")
    series = {
        execution.identity["series"] for job in alone.jobs for execution in job.spec.executions
    }
    assert series_by_dataset["tiny"] == series
    checksum = [
        execution for execution in [*plan.jobs][-1].spec.executions if execution.kind == "checksum"
    ]
    assert [execution.identity["dataset"] for execution in checksum] == ["tiny"] * 2 + ["other"] * 2
    (cost,) = estimate_site_costs(plan, {})
    (cost_alone,) = estimate_site_costs(alone, {})
    assert cost.read_bytes is not None
    assert cost_alone.read_bytes is not None
    assert cost.read_bytes > cost_alone.read_bytes


def test_only_datasets_without_replica_are_skipped(tmp_path: Path) -> None:
    site = make_site()
    key = site.name, site.doors[0].name
    plan = plan_two_datasets(tmp_path, RucioPlacement({}, {(*key, "other"): "no replica here"}))
    read = {
        str(execution.identity["dataset"]) for job in plan.jobs for execution in job.spec.executions
    }
    assert read == {"tiny"}
    assert [note for note in plan.notes if "is skipped for other" in note]


PAIRED_TEST = READING_TEST.replace("rounds = 2", 'rounds = 2\nmode = "paired"')


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


@pytest.mark.parametrize("releases", [2, 3])
def test_paired_job_compares_each_release_with_the_first(tmp_path: Path, releases: int) -> None:
    names = ["6.38.00", "6.40.00", "6.39.01"][:releases]
    text = PAIRED_TEST.replace('["6.38.00", "6.40.00"]', json.dumps(names))
    for job in make_local_plan(tmp_path, text).jobs:
        if job.kind == "checksum":
            assert {execution.mode for execution in job.spec.executions} == {"solo"}
            continue
        launches: dict[int, list[ExecutionSpec]] = {}
        for execution in job.spec.executions:
            launches.setdefault(execution.round, []).append(execution)
        assert [*launches] == [*range(1, 3 * (releases - 1) + 1)]
        compared: Counter[tuple[str, ...]] = Counter()
        for halves in launches.values():
            assert [half.position for half in halves] == [1, 2]
            assert {half.mode for half in halves} == {"paired"}
            order = "".join(half.side for half in halves)
            assert {half.identity["launch_order"] for half in halves} == {order}
            base, other = sorted(halves, key=lambda half: half.side)
            kinds = {half.kind for half in halves}
            assert kinds == ({"control"} if other.variant == base.variant else {"timed"})
            assert base.variant["root"] == "6.38.00"
            compared[str(other.variant["root"]), *kinds, *(order if "timed" in kinds else ())] += 1
        # Either side begins one of the two launches; each release has an A/A launch beside them.
        assert compared.pop(("6.38.00", "control")) == releases - 1
        assert compared == {
            (name, "timed", *order): 1 for name in names[1:] for order in ("AB", "BA")
        }


DOORS_TEST = PAIRED_TEST.replace('bundle = ["root"]', 'door = ["near", "far"]\nbundle = ["door"]')


def test_job_with_bundled_doors_reads_through_each(tmp_path: Path) -> None:
    site, lone = make_site("far", "near", name="both"), make_site("far", name="lone")
    plan = make_local_plan(tmp_path, DOORS_TEST, site, lone)
    assert plan.notes == (
        "Site lone has no door 'near' (known: far).",
        "Site lone is skipped: door far has no other one to be compared with.",
    )
    timed = [job for job in plan.jobs if job.kind == "timed"]
    assert len(timed) == 8  # two repeats of two releases with two caches
    assert len({job.spec.job_id for job in plan.jobs}) == len(plan.jobs) == 10
    for job in timed:
        assert (job.site.name, job.access.door_label) == ("both", "near")
        halves = [(half.kind, half.side, half.identity["door"]) for half in job.spec.executions]
        assert Counter(halves) == {
            ("timed", "A", "near"): 2,
            ("timed", "B", "far"): 2,
            ("control", "A", "near"): 1,
            ("control", "B", "near"): 1,
        }
        for half in job.spec.executions:
            door = job.spec.door_of(half)
            assert job.spec.door_url_of(half) == f"/{door}/data"
            assert half.files[0].url == f"/{door}/data/tiny/tiny.root"
            assert "door" not in half.variant
        assert len({half.identity["series"] for half in job.spec.executions}) == 2
    checked = {job.access.door_label for job in plan.jobs if job.kind == "checksum"}
    assert checked == {"near", "far"}


def test_launches_run_in_orders_of_their_own_and_form_own_series(tmp_path: Path) -> None:
    text = PAIRED_TEST.replace("repeats = 2", "repeats = 20")
    orders = {
        tuple(half.kind + half.side for half in job.spec.executions)
        for job in make_local_plan(tmp_path, text).jobs
    }
    assert len(orders) > 5
    solo, paired = (
        {execution.identity["series"] for job in plan.jobs for execution in job.spec.executions}
        for plan in (make_local_plan(tmp_path), make_local_plan(tmp_path, PAIRED_TEST))
    )
    assert not solo & paired


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
    sites = SiteSelection((make_site("one", name="STORAGE"),))
    selection = select_doors(sites, pinned.definition)
    request = CampaignRequest(str(folder), created_us=CREATED_US)
    return make_plan(request, pinned, selection, JobInputs(software), watches)


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
    assert [identity["test_name"] for identity in identities] == [
        "load",
        "load",
        "server-watch",
        "log-parse",
    ]
    assert [identity["site"] for identity in identities] == ["STORAGE", "STORAGE", "DISK1", "DISK1"]
    assert {(identity["storage_site"], identity["door"]) for identity in identities} == {
        ("STORAGE", "one")
    }
    assert [identity["job_id"] for identity in identities] == [job.spec.job_id for job in jobs]
    assert len({job.spec.job_id for job in jobs}) == 4
    assert len({identity["series"] for identity in identities}) == 3
    assert len({identity["campaign_id"] for identity in identities}) == 1


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
    assert plan.request.watch[0].sites == ("DISK1",)


def test_settings_reach_the_tests_that_have_them(tmp_path: Path) -> None:
    overrides = {"repeats": "3", "watch.log": "/x", "watch.server": "d1"}
    names = ("server-watch", "log-parse")
    request = CampaignRequest("", overrides=overrides, watches=names, watch_sites=("local",))
    assert request.test_overrides == {"repeats": "3"}
    loading = make_pinned_test(tmp_path, LOAD_TEST).definition
    watches = load_watches(request, loading, make_settings(tmp_path))
    settings_by_watch = [dict(watch.pinned.definition.settings) for watch in watches]
    assert [(values.get("log"), values["server"]) for values in settings_by_watch] == [
        (None, "d1"),
        ("/x", "d1"),
    ]
    assert {watch.pinned.definition.load for watch in watches} == {loading.load}


@pytest.mark.parametrize(
    ("specs", "sites", "settings", "message"),
    [
        (["server-watch"], [], {}, "no server named"),
        ([], ["local"], {}, "nothing watches"),
        ([], [], {"log": "/x"}, "nothing watches"),
        (["server-watch"], ["local"], {"lock": "/x"}, "no test of --watch has this key"),
        (["server-watch"] * 2, ["local"], {}, "two tests have the same name"),
        (["open-rate"], ["local"], {}, "cannot watch a server"),
    ],
)
def test_useless_options_are_refused(
    specs: list[str], sites: list[str], settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    loading = make_pinned_test(tmp_path, LOAD_TEST).definition
    overrides = {f"watch.{key}": value for key, value in settings.items()}
    request = CampaignRequest(
        "", overrides=overrides, watches=tuple(specs), watch_sites=tuple(sites)
    )
    with pytest.raises(ConfigError, match=message):
        load_watches(request, loading, make_settings(tmp_path))


def test_control_characters_in_a_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"campaign 'two\\nlines': its name has"):
        CampaignRequest("reads", name="two\nlines")


def test_clients_without_a_common_start_are_refused(tmp_path: Path) -> None:
    pinned = make_pinned_test(tmp_path, LOAD_TEST)
    assert pinned.definition.load
    load = pinned.definition.load.replace(together=False)
    alone = pinned.definition.replace(load=load)
    watch = pin_shipped("server-watch", tmp_path)
    with pytest.raises(ConfigError, match="only after a common start"):
        make_watch(watch, [make_site()], alone)
    with pytest.raises(ConfigError, match="only after a common start"):
        make_watch(watch, [make_site()], alone.replace(load=None))
