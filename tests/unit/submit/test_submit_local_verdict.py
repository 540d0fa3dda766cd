"""Campaigns that end when they are decided, and their live table."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from measurement_factory import make_measurement
from plan_factory import READING_TEST, make_grid_plan, make_local_plan, make_settings
from rich.console import Console

from treehammer.analysis.statistics.verdict import SequentialPlan
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import ConfigError
from treehammer.sql.read.campaign_counts import CampaignCount, MeasurementCount
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_request import CampaignRequest
from treehammer.submit.cli import unfinished_campaigns
from treehammer.submit.cli.local_verdict import (
    ComparedAxis,
    choose_slots,
    ends_when_decided,
    find_compared_axis,
    find_proving_campaign,
)
from treehammer.submit.planning.job_planner import PlannedJob
from treehammer.submit.planning.plan import Plan

PAIRED_TEST = READING_TEST.replace("rounds = 2", 'rounds = 2\nmode = "paired"')
SEQUENTIAL = SequentialPlan.up_to(12)


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


def test_first_look_has_two_jobs_of_two_launches_for_each_variant(plan: Plan) -> None:
    jobs = plan.between_looks(0, 3).jobs
    *timed, checksum = jobs
    assert checksum.kind == "checksum"
    assert Counter(job.label for job in timed) == {"cache_mb=0": 2, "cache_mb=30": 2}
    assert {len(job.spec.executions) for job in timed} == {4}
    for label in ("cache_mb=0", "cache_mb=30"):
        counts = count_launches(timed)
        assert (counts[label, "timed"], counts[label, "control"]) == (3, 1)
    assert len(jobs) == len(list(jobs)) == 5


def test_looks_follow_each_other_without_gap_or_repetition(plan: Plan) -> None:
    parts = [plan.between_looks(*look) for look in ((0, 3), (3, 6), (6, 12))]
    ids = [job.spec.job_id for part in parts for job in part.jobs]
    assert len(ids) == len(set(ids))
    assert set(ids) == {job.spec.job_id for job in plan.jobs}
    assert count_launches(job for part in parts for job in part.jobs) == {
        (label, kind): count
        for label in ("cache_mb=0", "cache_mb=30")
        for kind, count in (("timed", 12), ("control", 4))
    }
    assert plan.execution_count == sum(part.execution_count for part in parts)


def test_request_keeps_the_looks(plan: Plan) -> None:
    document = json.loads(plan.make_campaign_row().plan)
    assert document["until_decided"] == {"looks": [3, 6, 12], "delta": 0.02}


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


def test_campaign_grows_with_each_look(plan: Plan, tmp_path: Path) -> None:
    first, second = plan.between_looks(0, 3), plan.between_looks(3, 6)
    with Store.open(f"sqlite:///{tmp_path}/results.db") as store:
        store.add_campaign(first.make_campaign_row(), first.make_job_rows())
        store.extend_campaign(plan.campaign_id, second.make_job_rows())
        campaign = store.campaign(plan.campaign_id)
        jobs = store.jobs(plan.campaign_id)
    assert campaign.planned_jobs == len(jobs) == 9
    assert campaign.planned_measurements == sum(job.planned_measurements for job in jobs)


def test_comparison_in_turns_on_this_machine_ends_when_decided(plan: Plan) -> None:
    assert find_compared_axis(plan) == ComparedAxis("root", ("6.38.00", "6.40.00"))
    assert ends_when_decided(plan, CampaignRequest("reads"), None)
    assert ends_when_decided(plan, CampaignRequest("reads", overrides={"passes": "2"}), None)


@pytest.mark.parametrize("key", ["repeats", "rounds"])
def test_size_that_the_user_set_is_kept(plan: Plan, key: str) -> None:
    request = CampaignRequest("reads", overrides={key: "2"})
    assert not ends_when_decided(plan, request, None)
    assert ends_when_decided(plan, request, "decided")
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
    assert find_compared_axis(plan) is None
    assert not ends_when_decided(plan, CampaignRequest("reads"), None)
    with pytest.raises(ConfigError, match="only a comparison on this machine in turns"):
        ends_when_decided(plan, CampaignRequest("reads"), "decided")


def test_number_of_jobs_at_once_that_the_user_set_is_kept(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    assert choose_slots(settings).local_slots in (1, 2)
    stated = replace(
        settings, local_slots=1, sources={**settings.sources, "local_slots": "--local-slots"}
    )
    assert choose_slots(stated).local_slots == 1


def test_checksums_are_not_repeated_where_an_earlier_campaign_proved_them(tmp_path: Path) -> None:
    first = make_local_plan(tmp_path, PAIRED_TEST).until_decided(SEQUENTIAL)
    second = make_local_plan(tmp_path, PAIRED_TEST, created_us=1)
    with Store.open(f"sqlite:///{tmp_path}/results.db") as store:
        assert find_proving_campaign(store, second) == ""
        store.add_campaign(first.make_campaign_row(), first.make_job_rows())
        checksums = make_checksum_records(first)
        store.add(checksums[:1])
        assert find_proving_campaign(store, second) == "", "one release is not proven"
        store.add(checksums)
        assert find_proving_campaign(store, second) == first.campaign_id
    plan = second.until_decided(SEQUENTIAL, first.campaign_id)
    assert {job.kind for job in plan.jobs} == {"timed"}
    assert json.loads(plan.request)["until_decided"]["checksums"] == first.campaign_id
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
    Console(file=output, width=100).print(
        unfinished_campaigns._progress_table("my campaign", PROGRESS)
    )
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert lines[0] == ["my", "campaign"]
    states = ["site", "queued", "running", "done", "cancelled", "lost"]
    assert lines[1] == [*states, "failed"]
    assert lines[2] == ["SITE_A", "0", "2", "3", "0", "0", "2", "open"]
    assert lines[3] == ["[red]SITE_B[/red]", "5", "0", "0", "0", "0", "–"]
    assert lines[4][:8] == ["6", "of", "20", "measured", "(2", "of", "them", "failed),"]


def test_summary_names_day_of_distant_end() -> None:
    now_s = 1_800_000_000.0
    near = unfinished_campaigns.summarize_progress(PROGRESS, now_s)
    assert near.startswith("6 of 20 measured (2 of them failed), about 10 min left, until ")
    distant = replace(PROGRESS, remaining_s=3 * 86400.0)
    assert "2027-01-18" in unfinished_campaigns.summarize_progress(distant, now_s)
    assert unfinished_campaigns.summarize_progress(NOTHING_DONE) == "0 of 20 measured"


def test_numbers_of_the_summary_add_up_to_the_planned_ones() -> None:
    missing = Counter({"cancelled": 9, "lost": 1})
    ended = CampaignCount({"A": MeasurementCount(Counter(), 16, Counter(good=4, open=2), missing)})
    text = unfinished_campaigns.summarize_progress(ended)
    assert text == "6 of 16 measured (2 of them failed), 9 cancelled, 1 lost"


def test_held_column_appears_with_held_jobs() -> None:
    assert "held" not in unfinished_campaigns.visible_states(PROGRESS)
    with_held = CampaignCount({"A": MeasurementCount(Counter(held=1))})
    assert "held" in unfinished_campaigns.visible_states(with_held)


def test_pipe_gets_a_line_per_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with unfinished_campaigns.live_display("c", 20) as show:
        for progress in (NOTHING_DONE, NOTHING_DONE, PROGRESS, PROGRESS):
            show(progress)
        name, *lines = capsys.readouterr().out.splitlines()
        assert name == "c"
        assert [line.partition(" ")[2].partition(" measured")[0] for line in lines] == [
            ": 0 of 20",
            "5 queued, 2 running, 3 done, 2 failed: 6 of 20",
        ]
        monkeypatch.setattr(unfinished_campaigns, "QUIET_S", 0.0)
        show(PROGRESS)
        assert len(capsys.readouterr().out.splitlines()) == 1, "a sign of life"


#: Seconds for the lines to arrive.
PATIENCE_S = 30.0

FOLLOW = """
import sys
from treehammer.submit.cli.unfinished_campaigns import live_display
from treehammer.sql.read.campaign_counts import CampaignCount, MeasurementCount
with live_display("nightly", 20) as show:
    show(CampaignCount({"A": MeasurementCount(planned=20)}))
    sys.stdin.read()
"""


def test_lines_reach_a_pipe_while_the_campaign_runs() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=buffered,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        patience = threading.Timer(PATIENCE_S, process.kill)
        patience.start()
        lines = [process.stdout.readline() for _ in range(2)]
        running = process.poll() is None
        patience.cancel()
        process.stdin.close()
    assert running
    assert lines[0] == "nightly\n"
    assert "0 of 20 measured" in lines[1]


def test_result_for_programs_stays_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with unfinished_campaigns.live_display("c", 20, to_stderr=True) as show:
        show(PROGRESS)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "6 of 20 measured" in captured.err
