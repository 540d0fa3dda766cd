"""Summaries of load tests, and their headline metrics in comparisons and by day."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import STARTED_DAY, make_campaign_row, make_measurement, make_operation
from plan_factory import SHELL_TEST, make_local_plan
from repository_code import call_command, invoke_command
from service_thread import BROWSER, ServiceThread

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.analysis.status.day_outcomes import OperationsRule
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.errors import ConfigError, ExitCode
from treehammer.hctests.definition.toml_models import LoadTable
from treehammer.load import outcome
from treehammer.load.kit.treehammer_load.load_figures import summarize_rows, summarize_transfers
from treehammer.load.operation_figures import OperationDay, OperationGroup, load_operations
from treehammer.load.outcome import count_lonely_starts, summarize_starts
from treehammer.load.report import describe_campaign
from treehammer.load.storage_days import StorageDay
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import stored_comparisons
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


def fetch(store: Store, **options: Any) -> list[OperationGroup]:
    with store.snapshot() as snapshot:
        return load_operations(snapshot, Selection(), **options)


def add(store: Store, job: str, *steps: dict[str, Any], **values: Any) -> None:
    store.add([make_measurement(job, operations=steps, **values)])


def test_simultaneous_rates_add_and_consecutive_ones_average(store: Store) -> None:
    for job in "ab":
        add(store, job, *(make_operation([0.001] * 50, step=n, clients=3) for n in range(2)))
    add(store, "c", make_operation([0.5] * 50, {"timeout": 50}, step=1, clients=1, bytes=4000))
    # Answers came for 5 s after the load.
    add(store, "d", make_operation([], step=4, clients=0, step_s=5.0))
    [total] = fetch(store)
    # 20 s in all: 2 x 100 in both steps, and 100 more in the second.
    assert (total.measurements, total.active_clients, total.steps, total.seconds) == (4, 7, 5, 25.0)
    assert (total.attempted_hz, total.observed_hz) == (15.0, 10.0)
    assert total.bytes_per_s == 160
    assert total.failed_fraction == pytest.approx(50 / 300)
    assert total.failures == {"timeout": 50}
    assert total.latency.quantile(0.5) == pytest.approx(0.001, rel=0.01)
    assert total.latency.quantile(0.99) == pytest.approx(0.5, rel=0.01)
    steps = fetch(store, key=lambda row: row["step"])
    assert [(step.key, step.attempted_hz, step.active_clients) for step in steps] == [
        (0, 10.0, 6),
        (1, 20.0, 7),
        (4, None, 0),
    ]


def test_late_answers_take_their_time_also_of_steps_left_out(store: Store) -> None:
    delete = partial(make_operation, operation="delete")
    late = delete([], step=2, clients=0, step_s=20.0)
    for job, limited in (("a", False), ("b", True)):
        first = delete([15.0] * 150, generator_limited=limited)
        rows = [first, delete([15.0] * 50, {"timeout": 100}, step=1), late]
        add(store, job, *rows)
    # 400 answers came in 40 s, of which those of the second job's first step are left out.
    assert fetch(store)[0].observed_hz == 10.0
    rate_hz = summarize_transfers(rows, ())["achieved_hz"]
    assert summarize_rows(rows)["achieved_hz"] == rate_hz == 5.0


def test_clients_of_several_servers_count_once(store: Store) -> None:
    fields = ({"server": name, "step": n, "generator_limited": n} for name in "xy" for n in (0, 1))
    add(store, "a", *(make_operation([0.001], {}, clients=5, **more) for more in fields))
    [total] = fetch(store)
    assert (total.steps, total.limited_steps, total.active_clients, total.seconds) == (1, 1, 5, 10)


def test_gaps_between_jobs_do_not_lower_the_rate(store: Store) -> None:
    add(store, "a", make_operation([0.001] * 50))
    add(store, "b", make_operation([0.001] * 50, step=1000))
    [total] = fetch(store)
    assert (total.seconds, total.observed_hz, total.active_clients) == (20.0, 5.0, 1)


def test_limited_steps_and_unusable_measurements_are_left_out(store: Store) -> None:
    limited = make_operation([9.0] * 7, step=1, generator_limited=True)
    add(store, "a", make_operation([0.001] * 10), limited)
    add(store, "e", make_operation([0.001] * 10, step=1))
    add(store, "b", make_operation([9.0]), plausible=False)
    add(store, "c", make_operation([9.0]), failure_class="payload")
    add(store, "d", {**limited, "side": "server"})
    client, server = fetch(store)
    assert (client.steps, client.limited_steps, client.active_clients) == (2, 1, 2)
    assert client.attempted_hz == pytest.approx(1.5)
    assert client.latency.maximum < 1
    assert (server.steps, server.limited_steps, server.seconds) == (0, 1, 0.0)
    assert {server.attempted_hz, server.failed_fraction, server.bytes_per_s} == {None}
    assert (client.least_hz, client.describe_limit()) == (None, ""), "one step was not limited"
    assert server.least_hz == pytest.approx(7 / 10)


@pytest.fixture
def campaign(store: Store, tmp_path: Path) -> Path:
    store.add_campaign(make_campaign_row(name="opens"), [])
    for rate, site in ((50, "SITE_A"), (100, "SITE_A"), (50, "SITE_B")):
        steps = (make_operation([0.002] * rate, {"other": rate}, step=n) for n in range(2))
        late = make_operation([], step=2, clients=0, step_s=1e-9)
        add(store, f"{rate}{site}", *steps, late, site=site, variant=f'{{"rate_hz":{rate}}}')
    return tmp_path


summarize = partial(invoke_command, "summary")


def test_summary_of_a_load_test_shows_its_operations(campaign: Path) -> None:
    result = summarize(campaign)
    assert result.exception is None, result.output
    lines = [line.split()[:8] for line in result.output.splitlines()]
    assert ["SITE_A", "50", "open", "client", "1", "10.0", "5.00", "50.0"] in lines
    assert ["SITE_A", "100", "open", "client", "1", "20.0", "10.0", "50.0"] in lines
    assert "generator was the limit" in result.output
    assert "Failed operations: open: other 400." in result.output


def test_operations_are_grouped_by_axes_columns_and_steps(campaign: Path) -> None:
    groups = json.loads(summarize(campaign, "--by", "rate_hz,step", "--json").stdout)
    keys = [(group["rate_hz"], group["step"]) for group in groups]
    assert keys == [(50, 0), (50, 1), (100, 0), (100, 1)], "no step of late answers"
    assert {group["attempted_hz"] for group in groups} == {20.0}
    assert groups[0]["p99_s"] == pytest.approx(0.002, rel=0.01)
    assert groups[0]["failures"] == {"other": 100}
    csv = summarize(campaign, "--by", "site", "--where", "site=SITE_B", "--csv").stdout
    assert csv.splitlines()[1].startswith("SITE_B,open,client,1,10.0,5.0,0.5,")


def test_load_limited_in_all_steps_has_lower_bounds(store: Store, tmp_path: Path) -> None:
    """Its line has dashes only; a sentence names the limit and what is known."""
    store.add_campaign(make_campaign_row(name="opens"), [])
    for rate, done, limited in ((10, 50, True), (5, 50, False), (20, 0, True)):
        fields = {"bytes": 20_000_000, "generator_limited": limited}
        steps = [make_operation([0.5] * done, {"unfinished": 50}, step=n, **fields) for n in (0, 1)]
        values = {"variant": f'{{"rate_hz":{rate}}}', "variant_label": f"rate_hz={rate}"}
        add(store, str(rate), *steps, make_operation([], step=1, server="idle"), **values)
    output = summarize(tmp_path, "--by", "rate_hz").output
    sentence = (
        "rate_hz 10, open: the load generator was the limit in all steps, so that only lower bounds "
        "are known: the storage carries at least 5 operations/s and 2 MB/s."
    )
    assert sentence in output
    assert "rate_hz 5, open" not in output
    assert "was the limit in all steps, and no operation succeeded." in output
    assert "Failed operations of steps left out: open: unfinished 200." in output
    assert "more jobs with fewer clients each" in output
    rows = json.loads(summarize(tmp_path, "--by", "rate_hz", "--json").stdout)
    rates = [(row["least_hz"], row["observed_hz"]) for row in rows]
    assert rates == [(None, 5.0), (5.0, None), (0.0, None)]
    assert rows[1]["least_bytes_per_s"] == 2e6


def test_load_limited_by_the_ceiling_is_no_slow_storage(store: Store, tmp_path: Path) -> None:
    """Summary, report and page name the door's ceiling; rows of older kits do not count held ones."""
    store.add_campaign(make_campaign_row(name="opens"), [])
    for number, held in enumerate((None, 10, 50)):
        step = make_operation([0.001] * 50, bytes=50_000_000)
        del step["held"]
        step = {**step, "held": held} if held else step
        add(store, str(number), step, variant=f'{{"n":{number}}}')
    add(store, "3", make_operation([], {"other": 50}, held=50), variant='{"n":3}')
    left_out = make_operation([], {"refused": 7}, step=1, held=7, generator_limited=True)
    add(store, "4", left_out, variant='{"n":2}')
    output = summarize(tmp_path, "--by", "n").output
    sentence = (
        "the door's ceiling (key load in the sites file) was the limit, not the storage: it held back "
        "100 % of the operations, so that only lower bounds are known: the storage carries at least 5 "
        "operations/s and 5 MB/s."
    )
    assert f"n 2, open: {sentence}" in output
    assert output.count("was the limit, not the storage") == 1, "failures are no limit"
    assert "a higher load of the door" in output
    assert "more jobs with fewer clients" not in output
    rows = json.loads(summarize(tmp_path, "--by", "n", "--json").stdout)
    assert [row["held_fraction"] for row in rows] == [0.0, 0.2, 1.0, 1.0]
    with store.snapshot() as snapshot:
        summary, _ = describe_campaign(snapshot, store.campaign("last"))
    assert summary is not None
    assert summary.limits == [f"n=2: {sentence}"]
    headline = "keeps at least 5 open operations/s; at 5/s the door's ceiling was the limit"
    assert f"{headline}; 7 failed in steps left out" in summary.conclusion


def test_axes_may_have_the_names_of_figures(store: Store, tmp_path: Path) -> None:
    store.add_campaign(make_campaign_row(), [])
    step = make_operation([0.001], clients=7)
    add(store, "a", step, variant='{"bytes":2,"clients":1000}')
    [line] = json.loads(summarize(tmp_path, "--by", "clients,bytes", "--json").stdout)
    assert (line["clients"], line["active_clients"]) == (1000, 7)
    assert (line["axis_bytes"], line["bytes"]) == (2, 0)


def test_metrics_of_a_load_test_are_summarized_on_request(campaign: Path) -> None:
    result = summarize(campaign, "--metrics", "payload_wall_s")
    assert result.exception is None
    assert "payload_wall_s" in result.output
    refused = summarize(campaign, "--by", "colour")
    assert "neither an axis" in str(refused.exception)


def test_missing_rates_are_explained_by_the_generator(store: Store, tmp_path: Path) -> None:
    """Loads whose steps are all left out report no rates, although the test declares them."""
    store.add_campaign(make_campaign_row(), [])
    for job, limited in (("a", 1.0), ("b", 0.0)):
        add(store, job, make_operation([0.1]), extras={"limited_steps": limited, "total_s": 1.0})
    refused = summarize(tmp_path, "--metrics", "latency_p99_s").exception
    assert isinstance(refused, ConfigError)
    assert "In some steps the load generator was the limit" in str(refused.hint)
    assert "Reported: limited_steps, total_s." in str(refused.hint)


LOAD = LoadTable(together=True, duration_s=100.0)


def start_row(index: int, offset_s: float | None, **changes: Any) -> dict[str, Any]:
    values = {
        "job_id": f"job {index}",
        "attempt": 1,
        "round": 1,
        "position": 1,
        "failure_class": None,
        "load_index": index,
        "load_jobs": 4,
        "start_state": "together",
        "start_planned_us": 5_000_000,
        "start_offset_s": offset_s,
        "clock_error_s": 0.002,
    }
    return {**values, **changes}


def test_spread_within_the_bound_is_good() -> None:
    (start,) = summarize_starts([start_row(n, 0.05 * n) for n in range(4)], LOAD)
    assert start.spread_s == pytest.approx(0.15)
    assert start.missing_load == pytest.approx(0.3 / 400)
    assert start.describe() == (
        "good: 4 of 4 jobs started together, spread 150 ms (at most 250 ms, clocks within 2.0 ms); "
        "0.1 % of the load missing"
    )


def test_inaccurate_clocks_leave_the_judgment_open() -> None:
    rows = [start_row(n, 0.05 * n, clock_error_s=0.06) for n in range(4)]
    assert summarize_starts(rows, LOAD)[0].judgment == "unclear"
    wide = [start_row(n, 0.1 * n, clock_error_s=0.01) for n in range(4)]
    assert summarize_starts(wide, LOAD)[0].judgment == "bad"


def test_late_and_absent_jobs_are_named() -> None:
    rows = [start_row(0, 0.0), start_row(1, 0.01), start_row(2, 20.0, start_state="late")]
    (start,) = summarize_starts(rows, LOAD)
    assert (start.started, start.late) == (3, 1)
    assert start.missing_load == pytest.approx((20.01 + 100) / 400)
    assert "bad: 3 of 4 jobs" in start.describe()
    assert "1 late, by up to 20.0 s; 30.0 % of the load missing" in start.describe()
    failed = [*rows, start_row(3, None, failure_class="submission", start_state="late")]
    assert summarize_starts(failed, LOAD)[0].missing_load == start.missing_load


def test_ramp_counts_what_was_planned() -> None:
    load = LoadTable(together=True, ramp="2/50s", duration_s=100.0)
    (start,) = summarize_starts([start_row(n, 0.0) for n in range(3)], load)
    assert start.missing_load == pytest.approx(50 / 300)


def test_last_attempts_and_lonely_jobs_count() -> None:
    lonely = {"start_state": "alone", "start_planned_us": None, "start_offset_s": None}
    rows = [
        start_row(0, 9.0),
        start_row(0, 0.0, attempt=2),
        start_row(1, 0.0),
        start_row(2, None, **lonely),
    ]
    assert summarize_starts(rows, LOAD)[0].started == 2
    assert count_lonely_starts(rows) == 1
    later = [start_row(0, 0.0, round=2, start_planned_us=6_000_000)]
    assert [start.start_us for start in summarize_starts([*rows, *later], LOAD)] == [
        5_000_000,
        6_000_000,
    ]


LOAD_TEST = f"{SHELL_TEST}[load]\ntogether = true\nduration_s = 100\n"


def test_ceiling_and_unread_files_are_stated_with_the_outcome(tmp_path: Path, store: Store) -> None:
    """A load that its time ended after 12 of 200 files is not simply done."""
    campaign = make_local_plan(tmp_path, LOAD_TEST).make_campaign_row()
    store.add_campaign(campaign, [])
    step = make_operation([0.001] * 12, operation="read_file", held=12)
    extras = {"files_unread": 188.0}
    store.add([make_measurement(campaign_id=campaign.id, operations=[step], extras=extras)])
    add(store, "b", make_operation([0.001] * 99), campaign_id=campaign.id, door="other")
    ceiling, unread = outcome.describe_limits(store, campaign)
    assert "the door's ceiling (key load in the sites file) was the limit" in ceiling
    assert unread.endswith("longest duration (load.duration_s) with 188 files unread.")
    assert not list(outcome.describe_limits(store, make_campaign_row()))


def test_starts_are_described_in_order_and_lonely_jobs_counted(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = make_local_plan(tmp_path, LOAD_TEST).make_campaign_row()
    store.add_campaign(campaign, [])
    for round_, offset_s in ((1, 0.1), (2, 0.5)):
        store.add(
            make_measurement(
                job=f"job {index}",
                round_=round_,
                campaign_id=campaign.id,
                load_index=index,
                load_jobs=2,
                start_state="together",
                start_planned_us=round_ * 60_000_000,
                start_offset_s=offset_s * index,
            )
            for index in (0, 1)
        )
    lines = list(outcome.describe_starts(store, campaign))
    assert [line.partition(":")[2].partition(" (")[0] for line in lines] == [
        "01:00Z good: 2 of 2 jobs started together, spread 100 ms",
        "02:00Z bad: 2 of 2 jobs started together, spread 500 ms",
    ]
    monkeypatch.setattr(outcome, "MAX_SHOWN_STARTS", 1)
    short = list(outcome.describe_starts(store, campaign))
    assert short == ["1 of 2 common starts are good", lines[1]]
    alone = make_measurement(job="alone", campaign_id=campaign.id, start_state="alone")
    store.add([alone])
    assert "1 measurement began alone" in list(outcome.describe_starts(store, campaign))[-1]


HEADLINE = ("open_p99_s", "rate_hz", "queue_depth", "open_success_fraction")


def make_headline_plan(*headline: str, load: bool = True) -> str:
    definition = {
        "headline": [*headline],
        "metrics": {"queue_depth": {"unit": "1", "better": "lower", "description": ""}},
        "load": {} if load else None,
        "axes": {"listen": [5, 128]},
        "bundle": ["listen"],
    }
    return json.dumps({"definition": definition}, sort_keys=True)


def fill_with_headline(
    store: Store, plan: str, jobs: int = 6, **by_listen: dict[str, float]
) -> None:
    """Add jobs that hold two values of the axis ``listen``; a long queue halves the latency."""
    noise = random.Random(3)
    store.add_campaign(make_campaign_row(plan=plan), [])
    measurements = []
    for number in range(jobs):
        for round_, position, listen in ((1, 1, 5), (1, 2, 128), (2, 2, 5), (2, 1, 128)):
            latency = (0.04 if listen == 5 else 0.02) * noise.uniform(0.98, 1.02)
            done = round((200 if listen == 5 else 300) * noise.uniform(0.99, 1.01))
            depth = by_listen.get("depth", {}).get(str(listen), listen * noise.uniform(0.99, 1.01))
            steps = [
                make_operation([latency] * done, {"timeout": 3}, step=0),
                make_operation([9.0], step=0, side="server"),
            ]
            variant, extras = f'{{"listen":{listen}}}', {"queue_depth": depth}
            job = f"job{number}", round_, position
            given: dict[str, Any] = {"host": "n1", "extras": extras, "operations": steps}
            measurements.append(make_measurement(*job, variant=variant, **given))
    store.add(measurements)


compare = partial(call_command, "compare")


def stored_rows(store: Store) -> dict[str, VerdictRow]:
    (latest,) = stored_comparisons.list_latest_comparisons(store, 1)
    rows = store.verdicts(latest.first_verdict.comparison_id)
    return {row.metric: row for row in rows if row.site}


def test_verdicts_follow_the_headline_and_its_directions(store: Store, tmp_path: Path) -> None:
    fill_with_headline(store, make_headline_plan(*HEADLINE))
    result = compare(tmp_path, "5", "128", "--axis", "listen")
    rows = stored_rows(store)
    assert tuple(rows) == HEADLINE
    latency, rate, depth, success = rows.values()
    assert latency.verdict == Verdict.FASTER
    assert math.exp(latency.effect or 0) == pytest.approx(0.5, rel=0.02)
    # A higher rate is better, although its effect is positive.
    assert rate.verdict == Verdict.FASTER
    assert math.exp(rate.effect or 0) == pytest.approx(1.5, rel=0.02)
    assert depth.verdict == Verdict.SLOWER
    assert success.verdict == Verdict.SAME
    evidence = {name: row.evidence for name, row in rows.items()}
    assert [(value.unit, value.better) for value in evidence.values()] == [
        ("s", "lower"),
        ("Hz", "higher"),
        ("1", "lower"),
        ("1", "higher"),
    ]
    assert evidence["rate_hz"].a_value == pytest.approx(20, rel=0.02)
    # Worse counts as a regression.
    assert result.return_value == ExitCode.REGRESSION
    sentence = verdict_text.describe_verdict(rate)
    assert sentence.startswith("rate_hz with 128 is 5")
    assert "% higher (better) [" in sentence
    assert "20.0 ms" in result.output
    assert "ms/event" not in result.output
    assert result.output.startswith("On this host, open_p99_s is 50")
    assert " %) lower (better) with listen=128 than with listen=5. rate_hz is" in result.output


def test_jobs_of_a_common_start_count_once(store: Store, tmp_path: Path) -> None:
    store.add_campaign(make_campaign_row(plan=make_headline_plan("queue_depth")), [])
    for start, message in enumerate(
        ("1 start; needed are 3; submit more rounds", "", "(3 starts)")
    ):
        for listen, job in itertools.product((50, 128), range(4)):
            name, variant = f"{listen}-{start}-{job}", f'{{"listen":{listen}}}'
            extras, start_us = {"queue_depth": listen + start + job / 9}, listen + start
            add(store, name, variant=variant, extras=extras, start_planned_us=start_us)
        assert message in compare(tmp_path, "50", "128", "--axis", "listen").output


def test_what_has_no_ratio_is_refused_instead_of_left_out(store: Store, tmp_path: Path) -> None:
    fill_with_headline(store, make_headline_plan("queue_depth"), depth={"5": 0.0, "128": -1.0})
    compare(tmp_path, "5", "128", "--axis", "listen")
    (row,) = stored_rows(store).values()
    assert row.verdict == Verdict.NOT_ENOUGH
    assert "queue_depth is not above 0 in 24 executions, which has no ratio" in row.evidence.why


def test_newest_campaign_that_states_a_headline_decides(store: Store) -> None:
    fill_with_headline(store, make_headline_plan("rate_hz"), jobs=1)
    for number, (plan, created_us) in enumerate(
        ((make_headline_plan("queue_depth"), 5), ("{}", 9))
    ):
        name = f"later{number}"
        store.add_campaign(make_campaign_row(name, plan=plan, created_us=created_us), [])
        store.add([make_measurement(name, campaign_id=name, extras={"queue_depth": 7.0})])
    other: dict[str, Any] = {"campaign_id": "plain", "test_hash": "another test"}
    store.add([make_measurement("other", **other, cpu_per_event_s=0.5)])
    samples = [
        Sample.from_row(row) for row in load_headline_rows(store, Selection(), SAMPLE_COLUMNS)
    ]
    metrics = {
        sample.job_id: ([m.name for m in sample.headline], dict(sample.metrics))
        for sample in samples
    }
    assert metrics["later1"] == (["queue_depth"], {"queue_depth": 7.0})
    assert metrics["job0"][0] == ["queue_depth"]
    assert metrics["other"] == (["cpu_per_event_s", "wall_per_event_s"], {"cpu_per_event_s": 0.5})


def test_quantiles_need_enough_operations(store: Store) -> None:
    store.add_campaign(
        make_campaign_row(plan=make_headline_plan("open_p95_s", "p99_s", "max_s")), []
    )
    store.add([make_measurement("a", operations=[make_operation([0.5] * 20)])])
    (row,) = load_headline_rows(store, Selection(), SAMPLE_COLUMNS)
    assert row["open_p95_s"] == pytest.approx(0.5, rel=0.01)
    assert (row["p99_s"], row["max_s"]) == (None, pytest.approx(0.5, rel=0.01))


def test_exact_metrics_of_a_test_are_compared_as_counters(store: Store, tmp_path: Path) -> None:
    plan = make_headline_plan("rate_hz").replace(
        '"better": "lower"', '"better": "lower", "exact": true'
    )
    fill_with_headline(store, plan, depth={"5": 10, "128": 12})
    (row, *_) = load_headline_rows(store, Selection(), SAMPLE_COLUMNS)
    assert row["exact_metrics"] == {"queue_depth": "lower"}
    result = compare(tmp_path, "5", "128", "--axis", "listen")
    assert "Exact counters that changed" in result.output
    assert "+20.0 % queue depth" in result.output
    # The rate is better, but the queue is not.
    assert result.return_value == ExitCode.REGRESSION


def test_headline_metrics_are_shown_with_their_units(pages: ServiceThread) -> None:
    plan = json.dumps({"definition": {"headline": ["rate_hz"], "metrics": {}, "load": {}}})
    pages.store.add_campaign(make_campaign_row(plan=plan), [])
    for number, position in itertools.product(range(4), (1, 2)):
        latencies = [0.001] * (position * 100 + number)
        values = {"variant": f'{{"listen":{position}}}', "host": "n"}
        steps = [make_operation(latencies)]
        pages.store.add([make_measurement(f"j{number}", 1, position, operations=steps, **values)])
    address = "/compare?axis=listen&a=1&b=2"
    (row,) = pages.load_tables(address)["by_site"]
    assert (row["metric"], row["verdict"], row["unit"]) == ("rate_hz", "faster", "Hz")
    page = pages.load_page(address)
    assert "10.2/s" in page  # the mean of 10.0 to 10.3
    assert ">better<" in page
    assert "lower ← 0 → higher" in page
    assert "ms/event" not in page


def operations(
    name: str, done: int, failed: int = 0, seconds: float = 1.0, **changes: Any
) -> OperationDay:
    latency = LatencyHistogram()
    if done:
        latency.record(seconds, done)
    return replace(OperationDay("A", 1, name, 0, done, failed, latency, None), **changes)


def judge(*rows: OperationDay) -> StorageDay:
    return StorageDay.from_operations(rows, OperationsRule())


@pytest.mark.parametrize(
    "rows, letter, reason",
    [
        ([operations("open", 100, 6)], "G", "100 of 106 opens succeeded"),
        ([operations("open", 100, 7)], "W", "7 of 107 opens failed"),
        ([operations("open", 0, 20)], "F", "none of 20 opens succeeded"),
        ([operations("open", 19)], "N", "too few operations"),
        ([operations("open", 0, 19)], "N", "too few operations"),
        ([operations("open", 100), operations("read", 0, 30)], "F", "none of 30 reads succeeded"),
        ([operations("open", 5, 5), operations("read", 20)], "G", "20 of 20 reads succeeded"),
        ([operations("read", 20, 0, 2.9)], "G", "2.9"),
        ([operations("read", 20, 0, 3.1)], "W", "s per block"),
        ([operations("read", 19, 0, 3.1)], "N", "too few"),
        ([operations("read", 20, 0, 3.1, round_trip_s=0.2)], "G", "2.9"),
        ([operations("vector_read", 20, 2)], "W", "2 of 22 reads failed"),
        ([operations("open", 0, 0, limited_steps=6)], "N", "6 steps left out"),
        ([operations("delete", 100, 100)], "–", "no load test"),
    ],
)
def test_letter_follows_thresholds(rows: list[OperationDay], letter: str, reason: str) -> None:
    day = judge(*rows)
    assert day.letter == letter
    assert reason in str(day)


def test_round_trip_of_each_reader_is_taken_out() -> None:
    near = operations("read", 30, 0, 1.0, round_trip_s=0.001)
    far = operations("read", 10, 0, 2.0, round_trip_s=0.5)
    day = judge(near, far)
    assert day.block_s == pytest.approx((30 * 0.999 + 10 * 1.5) / 40, rel=0.01)


DAY = date.fromisoformat(str(STARTED_DAY))


def test_letters_of_storages_link_to_their_campaigns(pages: ServiceThread) -> None:
    assert "Storages under load" not in pages.load_page(f"/?to={DAY}")
    for job, storage, failures in (("a", "B", {}), ("b", "C", {"reset": 9})):
        steps = [make_operation([0.001] * 30, failures)]
        pages.store.add([make_measurement(job, operations=steps, site="A", storage_site=storage)])
    page = pages.read(f"/?to={DAY}")
    cells = [cell for table in page.tables.values() for row in table.cells for cell in row.values()]
    assert [cell.tooltip for cell in cells if "opens" in cell.tooltip] == [
        "B, 2026-03-01: ok, 30 of 30 opens succeeded",
        "C, 2026-03-01: warning, 9 of 39 opens failed",
    ]
    rows = pages.load_tables(f"/api/v1/overview?to={DAY}")["storage_days"]
    assert [(row["storage_site"], row["letter"], row["open_failed"]) for row in rows] == [
        ("B", "G", 0),
        ("C", "W", 9),
    ]
    [address, _] = page.list_links(".*by=campaign_id")
    assert pages.client.get(address, headers=BROWSER).status_code == 200
