"""Headline metrics and limits of a test, judged on campaigns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from limited_campaign import fill_with_limits, make_limited_plan
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from service_thread import run_service

from treehammer.analysis.comparison import limit_text, verdict_text
from treehammer.analysis.comparison.limit_outcomes import (
    LimitOutcome,
    LimitReport,
    LimitState,
    judge_limits,
)
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.campaign_report import write_report


@pytest.mark.parametrize(
    ("metric", "value", "unit", "text"),
    [
        ("cpu_per_event_s", 0.0123, "s", "12.3"),
        ("open_p99_s", 0.0123, "s", "12.3 ms"),
        ("open_p99_s", 5000.0, "s", "5,000,000 ms"),
        ("rate_hz", 199.6, "Hz", "200/s"),
        ("read_bytes_per_s", 3.21e8, "B/s", "321 MB/s"),
        ("eff_job", 0.5, "1", "0.5"),
        ("achieved_mb_per_s", 12.0, "MB/s", "12.0 MB/s"),
    ],
)
def test_values_have_their_unit(metric: str, value: float, unit: str, text: str) -> None:
    assert verdict_text.format_metric_value(metric, value, unit) == text


def judge(store: Store) -> LimitReport:
    return judge_limits(store, store.campaign("campaign"), 2)


def judge_only(store: Store) -> LimitOutcome:
    (outcome,) = judge(store).outcomes
    return outcome


@pytest.mark.parametrize(
    ("ratio", "noise", "state", "code", "mark"),
    [
        (1.0, 0.001, LimitState.KEPT, 0, "✅"),
        (1.1, 0.001, LimitState.MISSED, 1, "❌"),
        (1.03, 0.05, LimitState.UNDECIDED, 0, "❔"),
    ],
)
def test_ratio_to_a_base_decides_if_its_interval_excludes_the_limit(
    store: Store, ratio: float, noise: float, state: LimitState, code: int, mark: str
) -> None:
    limit = {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "first"}
    fill_with_limits(store, limit, ratio=ratio, noise=noise)
    outcome = judge_only(store)
    assert (outcome.state, judge(store).exit_code) == (state, code)
    assert limit_text.format_markdown(judge(store)).startswith(f"### {mark} Limits of x: 1 {state}")
    assert (outcome.base, outcome.label) == ("root=6.38.00", "root=6.40.00")
    assert outcome.low is not None
    assert outcome.high is not None
    assert (outcome.low < 1.02 < outcome.high) == (state is LimitState.UNDECIDED)
    assert outcome.level == pytest.approx(0.05)


def test_absolute_limit_is_judged_on_the_mean_of_jobs(store: Store) -> None:
    from scipy import stats

    fill_with_limits(
        store, {"metric": "cpu_per_event_s", "at_most": 3e-6, "where": {"root": "6.38.00"}}
    )
    outcome = judge_only(store)
    values = [
        float(str(row["cpu_per_event_s"]))
        for row in store.measurements(Selection(), ("variant", "cpu_per_event_s"))
        if json.loads(str(row["variant"]))["root"] == "6.38.00"
    ]
    half = stats.t.ppf(0.975, 3) * stats.sem(values)
    assert outcome.state is LimitState.KEPT
    assert outcome.value == pytest.approx(sum(values) / 4)
    assert outcome.low == pytest.approx(sum(values) / 4 - half)
    assert outcome.high == pytest.approx(sum(values) / 4 + half)
    assert (outcome.units, outcome.unit, outcome.label) == (4, "s", "root=6.38.00")


def test_several_limits_share_the_correction_of_comparisons(store: Store) -> None:
    limits = [{"metric": "cpu_per_event_s", "at_most": bound} for bound in (1.9e-6, 2e-6, 3e-6)]
    fill_with_limits(store, *limits, noise=0.02)
    outcomes = judge(store).outcomes
    decided = [outcome for outcome in outcomes if outcome.state is not LimitState.UNDECIDED]
    assert 0 < len(decided) < len(outcomes) == 6
    expected = 0.05 * len(decided) / len(outcomes)
    assert [outcome.level for outcome in outcomes] == pytest.approx([expected] * len(outcomes))


def test_looks_of_a_sequential_plan_share_the_error_rate(store: Store) -> None:
    plan = json.loads(make_limited_plan([{"metric": "cpu_per_event_s", "at_most": 3e-6}]))
    fill_with_limits(store)
    row = replace(store.campaign("campaign"), id="looked", name="looked")
    plan["until_decided"] = {"looks": [5, 10, 20, 40], "delta": 0.02}
    store.add_campaign(replace(row, plan=CampaignPlan.model_validate(plan)), [])
    for number in range(4):
        seconds = 2e-6 + number * 1e-9
        measurement = make_measurement(
            f"looked{number}", campaign_id="looked", host="n1", cpu_per_event_s=seconds
        )
        store.add([measurement])
    (outcome,) = judge_limits(store, store.campaign("looked"), 2).outcomes
    assert outcome.level == pytest.approx(0.05 * 0.6)


def test_own_metrics_zeros_and_values_without_spread_are_judged(store: Store) -> None:
    fill_with_limits(
        store,
        {"metric": "depth", "at_most": 0, "where": {"root": "6.40.00"}},
        {"metric": "rows", "at_least": 5, "where": {"root": "6.40.00"}},
        extras={"depth": 0.0, "rows": 4.0},
    )
    depth, rows = judge(store).outcomes
    assert (depth.state, depth.low, depth.high) == (LimitState.KEPT, 0, 0)
    assert (rows.state, rows.value) == (LimitState.MISSED, 4)


def test_limit_without_an_interval_says_why(store: Store) -> None:
    plan = make_limited_plan([{"metric": "max_rss_bytes", "at_most": 3}])
    store.add_campaign(make_campaign_row(plan=plan, test_name="x"), [])
    store.add(make_measurement(f"{n}", host=f"n{n // 2}", max_rss_bytes=n // 3) for n in range(4))
    outcome = judge_only(store)
    assert (outcome.state, outcome.value) == (LimitState.NOT_JUDGED, 0.25)
    assert outcome.why == "no interval: all values of a host, or means of hosts, are equal"


def test_exact_counter_is_decided_by_one_job(store: Store) -> None:
    fill_with_limits(store, {"metric": "bytes_read", "at_most": 1.5, "base": "6.38.00"}, jobs=1)
    outcome = judge_only(store)
    assert (outcome.state, outcome.value) == (LimitState.MISSED, 2.0)


def test_too_few_jobs_are_not_judged(store: Store) -> None:
    relative = {"metric": "cpu_per_event_s", "at_most": 2, "base": "first"}
    fill_with_limits(store, {"metric": "max_rss_bytes", "at_most": 9e9}, relative, jobs=2)
    report = judge(store)
    assert {outcome.state for outcome in report.outcomes} == {LimitState.NOT_JUDGED}
    assert report.outcomes[0].why.endswith("or 3 hosts; submit more repeats (-S repeats=6)")
    assert "2 jobs on one host; needed are 3" in report.outcomes[-1].why
    assert report.exit_code == 3


def test_absent_base_site_or_measurement_is_not_judged(store: Store) -> None:
    absolute = {"metric": "max_rss_bytes", "at_most": 9e9, "where": {"root": "6.40.00"}}
    relative = {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "6.36.00"}
    elsewhere = {"metric": "wall_per_event_s", "at_most": 1.02, "where": {"cache_mb": 0}}
    beside = {**elsewhere, "metric": "bytes_read", "base": "first"}
    unreported = {"metric": "depth", "at_most": 1, "where": {"root": "6.40.00"}}
    fill_with_limits(store, absolute, relative, elsewhere, beside, unreported, site="SITE_A")
    report = judge(store)
    reasons = {(outcome.metric, outcome.site): outcome.why for outcome in report.outcomes}
    assert {why for (_, site), why in reasons.items() if site == "local"} == {"no measurement"}
    assert {metric: why for (metric, site), why in reasons.items() if site == "SITE_A"} == {
        "max_rss_bytes": "",
        "cpu_per_event_s": "nothing was measured with root=6.36.00",
        "wall_per_event_s": "nothing was measured with cache_mb=0",
        "bytes_read": "nothing was measured with cache_mb=0 beside root=6.38.00",
        "depth": "no usable execution (no depth 4)",
    }
    assert report.exit_code == 3


def test_lost_measurements_keep_a_campaign_from_success(store: Store) -> None:
    fill_with_limits(store, {"metric": "max_rss_bytes", "at_most": 9e9}, lost=1)
    report = judge(store)
    assert {outcome.state for outcome in report.outcomes} == {LimitState.KEPT}
    assert (report.unmeasured, report.exit_code) == (2, 3)
    assert "2 of 10 measurements are not there" in limit_text.describe_limits(report)


def test_sites_have_bounds_of_their_own(store: Store) -> None:
    limit = {
        "metric": "cpu_per_event_s",
        "at_most": 1e-6,
        "where": {"root": "6.40.00"},
        "sites": {"local": {"at_most": 3e-6}},
    }
    fill_with_limits(store, limit)
    outcome = judge_only(store)
    assert (outcome.state, outcome.bound) == (LimitState.KEPT, 3e-6)


def test_first_of_compared_commits_is_the_base_and_has_no_absolute_limit(store: Store) -> None:
    commits = ["a" * 40, "b" * 40]
    axes = {"axes": {"root": ["none"], "commit": commits}, "bundle": ["commit"]}
    limits = [
        {"metric": "depth", "at_most": 15},
        {"metric": "depth", "at_most": 1.5, "base": "first"},
    ]
    metrics = {"depth": {"unit": "1", "exact": True}}
    plan = {"definition": {**axes, "metrics": metrics, "expect": limits}, "sites": ["local"]}
    row = make_campaign_row(plan=json.dumps(plan), test_name="x")
    store.add_campaign(row, [make_job_row("job", planned_measurements=2)])
    for position, (commit, depth) in enumerate(zip(commits, (20, 10), strict=True), 1):
        values: dict[str, Any] = {"commit_id": commit, "test_hash": commit, "test_path": "x"}
        extras = {"depth": depth}
        store.add([make_measurement("job", 1, position, host="n1", extras=extras, **values)])
    absolute, relative = judge(store).outcomes
    assert (absolute.label, absolute.value) == ("commit=bbbbbbbbbb", 10)
    assert (relative.label, relative.base) == ("commit=bbbbbbbbbb", "commit=aaaaaaaaaa")
    assert (relative.value, relative.state) == (0.5, LimitState.KEPT)


def test_report_and_campaign_page_show_the_outcomes(store: Store, tmp_path: Path) -> None:
    fill_with_limits(
        store, {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "first"}, ratio=1.1
    )
    write_report(f"sqlite:///{tmp_path}/results.db", ["last"], tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    with run_service(tmp_path, reading_open=True) as service:
        page = service.load_page("/campaigns/campaign")
        document = service.client.get("/campaigns/campaign?format=json&table=limits").json()
    for text in (report, page):
        assert "Limits: 1 missed" in text
        assert "≤ 1.02 × 6.38.00" in text
        assert "Intervals of 95 % confidence" in text
    (row,) = document["tables"]["limits"]
    assert (row["state"], row["metric"]) == ("missed", "cpu_per_event_s")


def test_page_of_a_large_campaign_names_the_command(store: Store, tmp_path: Path) -> None:
    plan = make_limited_plan([{"metric": "depth", "at_most": 1}])
    store.add_campaign(make_campaign_row(plan=plan, planned_measurements=2001), [])
    with run_service(tmp_path, reading_open=True) as service:
        page = service.load_page("/campaigns/campaign")
    assert "treehammer check --campaign campaign" in page
