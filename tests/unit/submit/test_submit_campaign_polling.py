"""Polling and outcome of campaigns, also of those that end when they are decided."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from plan_factory import (
    READING_TEST,
    SHELL_TEST,
    make_grid_plan,
    make_local_plan,
    make_pinned_test,
    make_settings,
)
from polled_campaign import PolledCampaign
from rich.console import Console
from simulated_campaign import SimulatedCampaign, add_campaign

from treehammer.analysis.statistics.verdict import plan_looks
from treehammer.analysis.status.site_uses import SiteState, SiteUses, SubjectUse, Usability
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.errors import BatchError, ConfigError
from treehammer.hctests.cli import parse_axis_options
from treehammer.hctests.definition.model import format_commit
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.read.campaign_counts import CampaignCount, MeasurementCount
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import BatchEvent
from treehammer.submit.campaigns import campaign_outcome, campaign_polling, submission
from treehammer.submit.campaigns.campaign_polling import describe_exclusion
from treehammer.submit.campaigns.submission import resume_campaign
from treehammer.submit.cli import campaign_output
from treehammer.submit.cli.comparison_commands import print_planned_verdict
from treehammer.submit.planning.job_planner import PlannedJob
from treehammer.submit.planning.plan import Plan, _describe_request
from treehammer.submit.planning.site_selection import SiteSelection
from treehammer.submit.planning.submission_options import CampaignRequest
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.tools.local_comparison import (
    choose_slots,
    ends_when_decided,
    find_proving_campaign,
)


def test_loads_of_running_jobs_are_read_as_far_as_batch_systems_answer(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = PolledCampaign(tmp_path, store)
    for job in scene.jobs()[:2]:
        scene.batch.set_status(job.batch_id, JobState.RUNNING)
    scene.end_job(scene.jobs()[2], JobState.DONE)
    scene.tracker.refresh_jobs(scene.campaign)
    assert len(scene.tracker.read_load_steps(scene.campaign)) == 2

    def refuse(_batch_ids: object) -> list[LoadProgress]:
        raise BatchError("the folder of a submission is damaged")

    monkeypatch.setattr(scene.batch, "read_load_steps", refuse)
    assert scene.tracker.read_load_steps(scene.campaign) == []


@pytest.mark.parametrize(("plan", "is_load"), [({"load": {"duration_s": 10}}, True), ({}, False)])
def test_rates_of_a_load_are_printed_at_each_change(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, plan: object, is_load: bool
) -> None:
    """Later jobs may repeat the rates of earlier ones."""
    scene = PolledCampaign(tmp_path, store, plan=json.dumps({"definition": plan}))
    first, second = (LoadProgress(step, 10, 1000, 0, 0) for step in range(2))
    steps = iter([[first], [first], [second], [], [first], []])
    monkeypatch.setattr(scene.tracker, "read_load_steps", lambda _: next(steps))
    monkeypatch.setattr(campaign_polling, "GRID_POLL_S", 0)
    polls: list[CampaignCount] = []

    def show(progress: CampaignCount) -> None:
        polls.append(progress)
        if len(polls) == 5:
            for job in (*scene.jobs(), *scene.jobs("SITE_B")):
                scene.end_job(job, JobState.DONE)

    lines: list[str] = []
    campaign_polling.follow_campaign(scene.tracker, scene.campaign, show, lines.append)
    assert len(polls) == 6
    numbers = [0, 1, 0] if is_load else []
    rates = "1 job: 100 operations/s, 0 failed/s, 0 MB/s"
    assert [line for line in lines if line.startswith("load")] == [
        f"load: step {number}, {rates}" for number in numbers
    ]


def test_remote_job_needs_its_site_and_the_other_storage() -> None:
    def use(kind: str, site: str) -> SubjectUse:
        return SubjectUse(
            kind,
            site,
            Usability.PROBE_ONLY,
            SiteState.CRITICAL,
            "exclusion",
            "bad",
            1,
            None,
            "x",
        )

    bad_storage = SiteUses({("storage_site", "S"): use("storage_site", "S")})
    bad_jobs = SiteUses({("site", "S"): use("site", "S")})
    remote = replace(make_job_row("j", site="J"), door="S:xrootd")
    assert "storage probe only" in describe_exclusion(remote, bad_storage)
    assert describe_exclusion(remote, bad_storage, ["S"]) == ""
    assert describe_exclusion(remote, bad_jobs) == ""
    bad_door = SiteUses({("door", "S:xrootd"): use("door", "S:xrootd")})
    assert describe_exclusion(remote, bad_door).startswith("door xrootd probe only since")
    assert describe_exclusion(replace(remote, door="S:https"), bad_door) == ""
    assert describe_exclusion(remote, bad_door, ["S:xrootd"]) == ""
    local = replace(make_job_row("j", site="S"), door="xrootd")
    assert describe_exclusion(local, bad_door)
    assert describe_exclusion(local, bad_storage)
    assert describe_exclusion(local, bad_jobs)


def test_job_is_not_requeued_above_attempt_limit(tmp_path: Path, store: Store) -> None:
    scene = PolledCampaign(tmp_path, store)
    first, second, *_ = scene.jobs()
    scene.end_job(
        first, JobState.LOST, number=submission.MAX_ATTEMPTS_IN_ALL, event=BatchEvent.EVICTED
    )
    scene.end_job(second, JobState.LOST, number=2, event=BatchEvent.EVICTED)
    scene.tracker.refresh_jobs(scene.campaign)
    done = resume_campaign(scene.tracker, scene.campaign, make_settings(tmp_path))
    assert (done.requeued, done.exhausted) == (1, 1)
    assert set(scene.batch.requeued.values()) == {2}


LOAD_TEST = f"{SHELL_TEST}[load]\ntogether = true\nduration_s = 100\n"


def test_only_jobs_that_start_together_refuse_a_resumption(tmp_path: Path) -> None:
    campaign_outcome.refuse_resumption(make_local_plan(tmp_path, SHELL_TEST).make_campaign_row())
    with pytest.raises(ConfigError, match="its jobs start together"):
        campaign_outcome.refuse_resumption(make_local_plan(tmp_path, LOAD_TEST).make_campaign_row())


SHIPPED = ("ttree-read", "nanoaod-read", "access-modes", "formats-read")


def parse_rerun_command(
    pinned: PinnedTest, tmp_path: Path, location: Path
) -> tuple[list[str], PinnedTest]:
    """Return the words of the command and the test that they define."""
    site = Site(name="SITE_A", batch="local", doors=(Door(name="file", protocol="file"),))
    row = make_campaign_row(
        repository=pinned.repository,
        commit_id=pinned.commit,
        plan=_describe_request(pinned, SiteSelection((site,)), ()),
    )
    words = shlex.split(campaign_outcome.rerun_command(row))
    axes = parse_axis_options(words[n + 1] for n, word in enumerate(words) if word == "-P")
    options = [words[n + 1] for n, word in enumerate(words) if word == "-S"]
    keys = dict(text.split("=", 1) for text in options)
    return words, load_pinned_test(str(location), axes, keys, make_settings(tmp_path))


@pytest.mark.parametrize("name", SHIPPED)
def test_command_repeats_overrides_of_shipped_test(tmp_path: Path, name: str) -> None:
    settings = make_settings(tmp_path)
    axes = {"root": ("6.38.00", "wrap:apptainer exec a,b"), "cache_mb": ("0", "2.5")}
    changed = load_pinned_test(name, axes, {"repeats": "7", "seed": "3"}, settings)
    words, repeated = parse_rerun_command(changed, tmp_path, Path(name))
    assert repeated.definition == changed.definition
    assert words[:2] == ["treehammer", "submit"]
    assert words[words.index("--sites") + 1] == "SITE_A"


@pytest.mark.parametrize(
    "text",
    [
        READING_TEST,
        SHELL_TEST
        + 'flag = [true, false]\nn = [1, 2.5]\nword = ["a,b", "c d"]\n[settings]\nwords = "two words"\nnumber = 3\nsides = {A = "a,b"}\n',
    ],
)
def test_command_repeats_own_test(tmp_path: Path, text: str) -> None:
    pinned = make_pinned_test(tmp_path / "test", text)
    _, repeated = parse_rerun_command(pinned, tmp_path, tmp_path / "test")
    assert repeated.definition == pinned.definition


def test_command_names_source_of_test() -> None:
    row = make_campaign_row(
        repository="https://example.org/a b.git", commit_id="c0ffee", test_path="x"
    )
    assert (
        campaign_outcome.rerun_command(row)
        == "treehammer submit 'https://example.org/a b.git@c0ffee:x'"
    )
    assert campaign_outcome.rerun_command(row, "render").startswith("treehammer render ")
    folder = replace(
        row, commit_id="", repository="/home/me/test", plan=CampaignPlan(excluded={"B": "down"})
    )
    assert campaign_outcome.rerun_command(folder) == "treehammer submit /home/me/test"


PAIRED_TEST = READING_TEST.replace("rounds = 2", 'rounds = 2\nmode = "paired"')
SEQUENTIAL = plan_looks(20)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Plan of two variants with the looks of :data:`SEQUENTIAL`."""
    return make_local_plan(tmp_path, PAIRED_TEST).until_decided(SEQUENTIAL)


def count_launches(jobs: Iterable[PlannedJob]) -> Counter[tuple[str, str]]:
    """Count the launches by variant and kind."""
    return Counter(
        (job.label, execution.kind)
        for job in jobs
        for execution in job.spec.executions
        if execution.side == "B"
    )


def make_checksum_records(plan: Plan) -> list[Measurement]:
    """Make the good records of the checksum executions of a plan."""
    return [
        make_measurement(
            **{
                **{n: v for n, v in execution.identity.items() if v is not None},
                "measurement_id": f"checksum-{execution.position}",
            },
            value_checksum="0123",
        )
        for job in plan.jobs
        if job.kind == "checksum"
        for execution in job.spec.executions
    ]


def test_first_look_has_two_jobs_of_three_launches_for_each_variant(plan: Plan) -> None:
    jobs = plan.between_looks(0, 5).jobs
    *timed, checksum = jobs
    assert checksum.kind == "checksum"
    assert Counter(job.label for job in timed) == {"cache_mb=0": 2, "cache_mb=30": 2}
    assert {len(job.spec.executions) for job in timed} == {6}
    for label in ("cache_mb=0", "cache_mb=30"):
        counts = count_launches(timed)
        assert (counts[label, "timed"], counts[label, "control"]) == (5, 1)
    assert len(jobs) == len(list(jobs)) == 5


def test_looks_follow_each_other_without_gap_or_repetition(plan: Plan) -> None:
    parts = [plan.between_looks(*look) for look in ((0, 5), (5, 10), (10, 20))]
    ids = [job.spec.job_id for part in parts for job in part.jobs]
    assert len(ids) == len(set(ids))
    assert set(ids) == {job.spec.job_id for job in plan.jobs}
    assert count_launches(job for part in parts for job in part.jobs) == {
        (label, kind): count
        for label in ("cache_mb=0", "cache_mb=30")
        for kind, count in (("timed", 20), ("control", 4))
    }
    assert plan.execution_count == sum(part.execution_count for part in parts)
    row = plan.make_campaign_row()
    assert "--until" not in campaign_outcome.rerun_command(row, "render")
    assert row.plan.to_document()["until_decided"] == {"looks": (5, 10, 20), "delta": 0.02}


@pytest.mark.parametrize("is_sequential", [True, False])
def test_sides_begin_in_turn_over_all_jobs(tmp_path: Path, is_sequential: bool) -> None:
    plan = make_local_plan(tmp_path, PAIRED_TEST.replace("rounds = 2", "rounds = 3"))
    if is_sequential:
        plan = plan.until_decided(SEQUENTIAL)
    orders = Counter(
        (job.label, execution.kind, execution.identity["launch_order"])
        for job in plan.jobs
        for execution in job.spec.executions
        if execution.side == "B"
    )
    for label in ("cache_mb=0", "cache_mb=30"):
        for kind in ("timed", "control"):
            assert orders[label, kind, "AB"] == orders[label, kind, "BA"] > 0


def test_campaigns_differ_in_the_order_of_their_launches(tmp_path: Path) -> None:
    orders = {
        tuple(
            (execution.kind, execution.identity["launch_order"])
            for job in make_local_plan(tmp_path, PAIRED_TEST, created_us=created_us).jobs
            for execution in job.spec.executions
        )
        for created_us in range(6)
    }
    assert len(orders) > 1


def test_campaign_grows_with_each_look(plan: Plan, store: Store) -> None:
    first, second = plan.between_looks(0, 5), plan.between_looks(5, 10)
    store.add_campaign(first.make_campaign_row(), first.make_job_rows())
    store.extend_campaign(plan.campaign_id, second.make_job_rows())
    campaign = store.campaign(plan.campaign_id)
    jobs = store.jobs(plan.campaign_id)
    assert campaign.planned_jobs == len(jobs) == 9
    assert campaign.planned_measurements == sum(job.planned_measurements for job in jobs)


@pytest.mark.parametrize("key", ["repeats", "rounds"])
def test_size_that_the_user_set_is_kept(plan: Plan, key: str) -> None:
    request = CampaignRequest("reads", overrides={key: "2"})
    assert not ends_when_decided(plan, request, None)
    assert ends_when_decided(plan, request, "decided")
    assert ends_when_decided(plan, CampaignRequest("reads", overrides={"passes": "2"}), None)
    assert not ends_when_decided(plan, CampaignRequest("reads"), "planned")


@pytest.mark.parametrize("case", ["solo", "two axes", "grid"])
def test_other_campaigns_run_as_planned(tmp_path: Path, case: str) -> None:
    texts = {
        "solo": READING_TEST,
        "two axes": PAIRED_TEST.replace('["root"]', '["root", "cache_mb"]'),
        "grid": PAIRED_TEST,
    }
    make = make_grid_plan if case == "grid" else make_local_plan
    plan = make(tmp_path, texts[case])
    assert not ends_when_decided(plan, CampaignRequest("reads"), None)
    with pytest.raises(ConfigError, match="only a comparison on this machine in turns"):
        ends_when_decided(plan, CampaignRequest("reads"), "decided")


def test_planned_campaign_in_turns_ends_with_the_verdict_on_each_axis(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """At any site, as ``report`` judges it: each further value against the first, as requested."""
    plan = make_grid_plan(tmp_path, PAIRED_TEST)
    definition = {
        "axes": {"root": ["6.40.00", "6.38.00"], "cache_mb": [0, 30], "branches": [1.0]},
        "bundle": ["root", "cache_mb"],
    }
    name = add_campaign(store, "nightly", 0.08)
    campaign = replace(
        store.campaign(name), plan=CampaignPlan.model_validate({"definition": definition})
    )
    print_planned_verdict(store, campaign, plan, 0.05, verbose=False)
    output = "".join(capsys.readouterr())
    assert "At T2_A, ROOT 6.38.00 needs 7." in output
    assert "less CPU time per event than 6.40.00" in output
    assert "Nothing was measured with cache_mb=0, so nothing is compared." in output
    assert f"compare 6.40.00 6.38.00 --axis root --campaign {campaign.id} --delta 0.05" in output


def test_planned_campaign_in_turns_ends_with_the_verdict_on_commits(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = ["1" * 40, "2" * 40]
    simulated = SimulatedCampaign(effect=0.08, sites=("T2_A",))
    release = dict.fromkeys(("axis_root", "root_version", "root_commit"), "6.40.00")
    rows = [
        row | release | {"variant": "{}", "commit_id": commits[row["axis_root"] == "6.40.00"]}
        for row in simulated.rows()
    ]
    definition = {"axes": {"root": ["6.40.00"], "commit": commits}, "bundle": ["commit"]}
    campaign = make_campaign_row(
        rows[0]["campaign_id"], plan=json.dumps({"definition": definition})
    )
    store.add_campaign(campaign, [])
    store.add(map(Measurement, rows))
    plan = make_grid_plan(tmp_path, PAIRED_TEST)
    print_planned_verdict(store, campaign, plan, 0.02, verbose=True)
    output = "".join(capsys.readouterr())
    assert " needs 8.1 % (7.6 to 8.7 %) more CPU time per event than " in output
    a, b = map(format_commit, commits)
    assert f"compare {a} {b} --axis commit --campaign {campaign.id}" in output


def test_number_of_jobs_at_once_that_the_user_set_is_kept(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    assert choose_slots(settings).local_slots in (1, 2)
    stated = replace(
        settings, local_slots=1, sources={**settings.sources, "local_slots": "--local-slots"}
    )
    assert choose_slots(stated).local_slots == 1


def test_checksums_are_not_repeated_where_an_earlier_campaign_proved_them(
    tmp_path: Path, store: Store
) -> None:
    first = make_local_plan(tmp_path, PAIRED_TEST).until_decided(SEQUENTIAL)
    second = make_local_plan(tmp_path, PAIRED_TEST, created_us=1)
    assert find_proving_campaign(store, second) == ""
    store.add_campaign(first.make_campaign_row(), first.make_job_rows())
    checksums = make_checksum_records(first)
    store.add(checksums[:1])
    assert find_proving_campaign(store, second) == "", "one release is not proven"
    store.add(checksums)
    assert find_proving_campaign(store, second) == first.campaign_id
    plan = second.until_decided(SEQUENTIAL, first.campaign_id)
    assert {job.kind for job in plan.jobs} == {"timed"}
    assert plan.request.until_decided
    assert plan.request.until_decided.checksums == first.campaign_id
    assert len(plan.jobs) == len(list(plan.jobs))


PROGRESS = CampaignCount(
    {
        "SITE_A": MeasurementCount(
            Counter({"running": 2, "done": 3}), 10, Counter({"good": 4, "open": 2})
        ),
        "[red]SITE_B[/red]": MeasurementCount(Counter({"queued": 5}), 10),
    },
    remaining_s=600.0,
)
NOTHING_DONE = CampaignCount({"A": MeasurementCount(planned=20)})


def test_table_shows_states_failures_and_summary() -> None:
    output = io.StringIO()
    Console(file=output, width=100).print(campaign_output._progress_table("my campaign", PROGRESS))
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert lines[0] == ["my", "campaign"]
    states = ["site", "queued", "running", "done", "cancelled", "lost"]
    assert lines[1] == [*states, "failed"]
    assert lines[2] == ["SITE_A", "0", "2", "3", "0", "0", "2", "open"]
    assert lines[3] == ["[red]SITE_B[/red]", "5", "0", "0", "0", "0", "–"]
    assert lines[4][:6] == ["6", "of", "20", "measured", "(2", "failed),"]
    with_held = CampaignCount({"A": MeasurementCount(Counter(held=1))})
    assert "held" in [c.key for c in campaign_output.make_progress_columns(with_held)]


@pytest.mark.usefixtures("zurich")
def test_summary_counts_all_planned_and_names_the_end() -> None:
    now_s = 1_800_000_000.0
    near = campaign_output.summarize_progress(PROGRESS, now_s)
    assert near == "6 of 20 measured (2 failed), about 10 min left, until 09:10 CET"
    distant = replace(PROGRESS, remaining_s=3 * 86400.0)
    assert "2027-01-18" in campaign_output.summarize_progress(distant, now_s)
    assert campaign_output.summarize_progress(NOTHING_DONE) == "0 of 20 measured"
    missing = Counter({"cancelled": 9, "lost": 1})
    ended = CampaignCount({"A": MeasurementCount(Counter(), 16, Counter(good=4, open=2), missing)})
    text = campaign_output.summarize_progress(ended)
    assert text == "6 of 16 measured (2 failed), 9 cancelled, 1 lost"


def test_pipe_gets_a_line_per_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with campaign_output.live_display("c", 20) as show:
        for progress in (NOTHING_DONE, NOTHING_DONE, PROGRESS, PROGRESS):
            show(progress)
        name, *lines = capsys.readouterr().out.splitlines()
        assert name == "c"
        assert [line.partition(" ")[2].partition(" measured")[0] for line in lines] == [
            ": 0 of 20",
            "5 queued, 2 running, 3 done: 6 of 20",
        ]
        monkeypatch.setattr(campaign_output, "QUIET_S", 0.0)
        show(PROGRESS)
        assert len(capsys.readouterr().out.splitlines()) == 1, "a sign of life"


def test_lines_reach_a_pipe_while_the_campaign_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(writer, "w") as output, open(reader, "rb") as lines:
        monkeypatch.setattr(sys, "stdout", output)
        with campaign_output.live_display("nightly", 20) as show:
            show(NOTHING_DONE)
            name, line = os.read(lines.fileno(), 1000).decode().splitlines()
    assert name == "nightly"
    assert "0 of 20 measured" in line


def test_result_for_programs_stays_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with campaign_output.live_display("c", 20, to_stderr=True) as show:
        show(PROGRESS)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "6 of 20 measured" in captured.err
