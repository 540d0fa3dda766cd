"""Comparisons by the headline metrics of a load test, and letters of storages by day."""

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
from repository_code import call_command
from service_thread import BROWSER, ServiceThread

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.analysis.status.day_outcomes import OperationsRule
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.errors import ExitCode
from treehammer.load.operation_figures import OperationDay
from treehammer.load.storage_days import StorageDay
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import stored_comparisons
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

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
            measurement = make_measurement(
                *(f"job{number}", round_, position),
                variant=variant,
                host="n1",
                extras=extras,
                operations=steps,
            )
            measurements.append(measurement)
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
    for words in ("20.0 ms", "40.", "better", "worse"):
        assert words in result.output
    assert "ms/event" not in result.output
    assert result.output.startswith("On this host, open_p99_s is 50")
    assert " %) lower (better) with listen=128 than with listen=5. rate_hz is" in result.output


def test_zero_is_refused_instead_of_left_out(store: Store, tmp_path: Path) -> None:
    fill_with_headline(store, make_headline_plan("queue_depth"), depth={"5": 0.0})
    compare(tmp_path, "5", "128", "--axis", "listen")
    (row,) = stored_rows(store).values()
    assert row.verdict == Verdict.NOT_ENOUGH
    assert "queue_depth is 0 in 12 executions, which has no ratio" in row.evidence.why


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
