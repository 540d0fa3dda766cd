"""Changes of exact counters, decided by one job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.cli.compare_command import ComparisonResult, print_comparisons
from treehammer.analysis.comparison.comparison import (
    ComparisonQuery,
    compare_samples,
    compare_together,
    compare_with_first,
)
from treehammer.analysis.comparison.count_changes import (
    FEWER,
    MORE,
    SAME,
    VARIES,
    CountedSample,
    CounterChange,
    attach_counters,
    compare_counters,
    format_counter_verdict,
    stored_counters,
    summarize_counters,
)
from treehammer.collectors.record.metric_catalogue import (
    ACCESS_MODES,
    COUNTER_NAMES,
    EXACT_COUNTERS,
    METRICS_BY_NAME,
    find_access_mode,
    list_exact_modes,
)
from treehammer.sql.read.query_model import Selection
from treehammer.terminal import JSON

A, B = "6.38.00", "6.40.00"
COUNTERS = {"read_calls": 1000, "bytes_read": 5_000_000, "kernel_read_calls": 1000}


def build_rows(jobs: int = 1, **changes: Any) -> Iterator[dict[str, Any]]:
    """Both releases with the same counters, changed on side B."""
    for row in SimulatedCampaign(jobs=jobs).rows():
        on_b = row.get("axis_root") == B or f'"root":"{B}"' in row["variant"].replace(" ", "")
        yield {**row, **COUNTERS, "door_protocol": "file", **(changes if on_b else {})}


def compare(rows: Iterator[dict[str, Any]]) -> dict[str, CounterChange]:
    counted = [CountedSample.from_row(row) for row in rows]
    return {one.metric: one for one in compare_counters(counted, "root", A, B)}


def test_one_job_with_equal_counters_is_the_same() -> None:
    found = compare(build_rows())
    assert set(found) == set(COUNTERS)
    assert {one.verdict for one in found.values()} == {SAME}
    assert {one.jobs for one in found.values()} == {1}
    assert not any(one.is_regression(0.02) for one in found.values())
    assert summarize_counters([*found.values()]) == "Exact counters of 1 variant: 3 same."


@pytest.mark.parametrize(
    "calls, verdict, text, regressed",
    [
        (1010, MORE, "+1.0 % read calls", False),
        (372_000, MORE, "372.0 × the read calls", True),
        (990, FEWER, "−1.0 % read calls", False),
        (1001, MORE, "+0.1 % read calls", False),
        (4, FEWER, "1/250.0 of the read calls", False),
        (0, FEWER, "fewer read calls", False),
    ],
)
def test_one_job_decides_a_change(calls: int, verdict: str, text: str, regressed: bool) -> None:
    change = compare(build_rows(read_calls=calls))["read_calls"]
    assert change.verdict == verdict
    assert format_counter_verdict(change) == text
    assert change.is_regression(0.02) == regressed


def test_counters_that_vary_on_one_side_decide_nothing() -> None:
    rows = [*build_rows(jobs=2)]
    rows[-1]["read_calls"] = 1001
    change = compare(iter(rows))["read_calls"]
    assert change.verdict == VARIES
    assert not change.is_regression(0.02)


def test_counters_are_kept_with_the_first_verdict_of_a_series() -> None:
    changes = [*compare(build_rows(read_calls=1010)).values()]
    found = compare_samples(SimulatedCampaign().samples(), ComparisonQuery("root", A, B), now_us=1)
    rows = attach_counters(found.verdicts, changes)
    assert [row.metric for row in rows if stored_counters([row])] == ["cpu_per_event_s"]
    kept = {one.metric: one for one in stored_counters(rows)}
    assert {
        name: (one.verdict, one.a_value, one.b_value, one.effect) for name, one in kept.items()
    } == {one.metric: (one.verdict, one.a_value, one.b_value, one.effect) for one in changes}
    assert summarize_counters([*kept.values()]) == summarize_counters(changes)
    assert attach_counters(found.verdicts, []) == found.verdicts


def test_changed_counters_are_printed_below_the_verdicts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = [*compare(build_rows(read_calls=1010)).values()]
    found = compare_samples(SimulatedCampaign().samples(), ComparisonQuery("root", A, B), now_us=1)
    print_comparisons([ComparisonResult(found, changes)], {})
    printed = capsys.readouterr().out
    assert "+1.0 % read calls" in printed
    assert "1,010" in printed
    assert "Exact counters of 1 variant: 2 same, 1 more (+1.0 % read calls)." in printed
    print_comparisons([ComparisonResult(found, changes)], {}, form=JSON)
    rows = json.loads(capsys.readouterr().out)
    counters = {row["metric"]: row["verdict"] for row in rows if row["scope"] == "counter"}
    assert counters == {"read_calls": MORE, "bytes_read": SAME, "kernel_read_calls": SAME}


@pytest.mark.parametrize("changes", [{"failure_class": "read"}, {"plausible": False}])
def test_unusable_executions_do_not_count(changes: dict[str, Any]) -> None:
    assert not compare(build_rows(**changes))


def test_noisy_counters_are_not_compared() -> None:
    rows = ({**row, "door_protocol": "root"} for row in build_rows())
    assert set(compare(rows)) == {"read_calls", "bytes_read"}
    rows = ({**row, "door_protocol": "https"} for row in build_rows())
    assert not compare(rows)


@pytest.mark.parametrize(
    "variant, protocol, mode",
    [
        ({"cache_mb": 30}, "file", "file, cached"),
        ({"cache_mb": 0}, "root", "root"),
        ({"cache_mb": 0, "access": "staged"}, "root", "file"),
        ({"cache_mb": 30}, "https", None),
        ({"cache_mb": 30, "format": "rntuple"}, "file", None),
        ({"cache_mb": 30, "threads": 1, "prefetch": 0}, "root", "root, cached"),
        ({"cache_mb": 30, "threads": 2}, "file", None),
        ({"cache_mb": 30, "prefetch": 1}, "root", None),
        ({}, "", None),
    ],
)
def test_access_modes(variant: dict[str, Any], protocol: str, mode: str | None) -> None:
    assert find_access_mode(variant, protocol) == mode


def test_exact_counters_are_metrics_of_the_payload() -> None:
    for name in COUNTER_NAMES:
        metric = METRICS_BY_NAME[name]
        assert (metric.owner, metric.type in ("int", "float")) == ("payload", True), name
        assert metric.exact_in == list_exact_modes(name) != ()
    assert METRICS_BY_NAME["cpu_per_event_s"].exact_in == ()
    assert METRICS_BY_NAME["kernel_read_bytes"].exact_in == ()
    assert set(EXACT_COUNTERS) == set(ACCESS_MODES)


def test_own_exact_metrics_are_compared_by_their_direction() -> None:
    own = {"copies": "lower", "hits": "higher", "seeds": ""}
    values = {"copies": 100, "hits": 50, "seeds": 7}

    def compare_own(**changes: int) -> dict[str, CounterChange]:
        rows = ({**values, **row, "exact_metrics": own} for row in build_rows(**changes))
        return compare(rows)

    same = compare_own()
    assert {name: same[name].verdict for name in own} == dict.fromkeys(own, SAME)
    changed = compare_own(copies=103, hits=48, seeds=8)
    assert {name: (changed[name].verdict, changed[name].better) for name in own} == {
        "copies": (MORE, "lower"),
        "hits": (FEWER, "higher"),
        "seeds": (MORE, ""),
    }
    assert [name for name in own if changed[name].is_regression(0.02)] == ["copies", "hits"]
    assert not changed["copies"].is_regression(0.05)
    assert not compare_own(hits=60)["hits"].is_regression(0.02)
    # Stored with the verdicts, with their direction.
    comparison = compare_samples(
        [CountedSample.from_row(row).sample for row in build_rows()],
        ComparisonQuery("root", A, B),
        now_us=0,
    )
    rows = attach_counters(comparison.verdicts, changed.values())
    stored = {one.metric: one for one in stored_counters(rows)}
    assert {name: stored[name] for name in own} == {name: changed[name] for name in own}


def test_notes_that_comparisons_share_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    samples = SimulatedCampaign(roots=("6.36.00", "6.38.00", "6.40.00"), effect=0.2).samples()
    questions = compare_with_first(
        "root", ["6.36.00", "6.38.00", "6.40.00"], delta=0.02, selection=Selection()
    )
    found = [ComparisonResult(one) for one in compare_together(samples, questions, now_us=0)]
    print_comparisons(found[:1], {})
    alone = capsys.readouterr().out
    print_comparisons(found, {})
    together = capsys.readouterr().out
    assert "All comparisons:" not in alone
    tables, _, common = together.partition("\nAll comparisons:\n")
    for sentence in ("Effects are means of ln(B/A)", "Times of either side"):
        assert alone.count(sentence) == common.count(sentence) == 1
        assert sentence not in tables
    assert tables.count("6.38.00 is ") == 2  # its sentences on CPU and wall time
