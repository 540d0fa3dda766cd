"""Latency histograms and rows of operations."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from treehammer.collectors.record.measurement_record import build_record_schema
from treehammer.collectors.record.operation_steps import (
    HIGHEST_US,
    OPERATION_METRICS,
    LatencyHistogram,
    find_operation_problems,
    make_operation_step,
)

LATENCIES_US = st.lists(
    st.one_of(st.integers(0, 300), st.integers(0, 10**7), st.integers(0, HIGHEST_US)), min_size=1
)


def make_histogram(latencies_us: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency in latencies_us:
        histogram.record(latency / 1e6)
    return histogram


def make_row(**changes: Any) -> dict[str, Any]:
    row = make_operation_step(
        make_histogram([1000, 2000]),
        {"timeout": 1},
        side="client",
        operation="open",
        server="",
        step=0,
        step_start_us=0,
        step_s=10.0,
        clients=1,
        scheduled=4,
        late=0,
        lateness_max_s=0.0,
        generator_cpu=0.1,
        generator_limited=False,
        bytes=0,
    )
    return {**row, **changes}


# Histograms


@given(LATENCIES_US)
def test_quantiles_are_within_one_per_cent(latencies: list[int]) -> None:
    histogram = make_histogram(latencies)
    ordered = sorted(latencies)
    for fraction in (0.0, 0.5, 0.95, 0.99, 1.0):
        exact = ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]
        assert histogram.quantile(fraction) * 1e6 == pytest.approx(exact, rel=0.008, abs=0.5)
    assert histogram.mean * 1e6 == pytest.approx(statistics.fmean(latencies), rel=0.008, abs=0.5)


@given(LATENCIES_US)
def test_reference_library_reads_and_writes_the_same_histogram(latencies: list[int]) -> None:
    theirs = HdrHistogram(1, HIGHEST_US, 2)
    for latency in latencies:
        theirs.record_value(latency)
    ours = make_histogram(latencies)
    read = HdrHistogram.decode(ours.encode())
    assert read.get_total_count() == len(latencies)
    assert read.get_value_at_percentile(50) == theirs.get_value_at_percentile(50)
    assert LatencyHistogram.decode(theirs.encode().decode()).encode() == ours.encode()


@given(LATENCIES_US, LATENCIES_US)
def test_merged_histograms_equal_the_histogram_of_all(a: list[int], b: list[int]) -> None:
    merged = LatencyHistogram.sum([make_histogram(a), make_histogram(b)])
    assert merged.encode() == make_histogram([*a, *b]).encode()


def test_bins_contain_the_recorded_values() -> None:
    assert [(low, high, n) for low, high, n in make_histogram([100, 100, 1000]).bins()] == [
        (100e-6, 101e-6, 2),
        (1000e-6, 1004e-6, 1),
    ]
    assert make_histogram([10, 20, 30, 40_000]).share_above(0.03) == 0.25


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: "HISTFAAA" + raw.hex()))
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"histogram|base64|padding|ASCII"):
        LatencyHistogram.decode(text)


def test_empty_histogram_has_no_quantiles() -> None:
    with pytest.raises(ValueError, match="no quantiles"):
        LatencyHistogram().quantile(0.5)
    assert LatencyHistogram.decode(LatencyHistogram().encode()).count == 0


# Rows


def test_complete_row_is_valid() -> None:
    assert find_operation_problems([make_row()]) == []
    assert set(make_row()) == {metric.name for metric in OPERATION_METRICS}
    described = build_record_schema()["properties"]["operations"]["items"]
    assert set(described["required"]) == set(make_row())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"side": "middle"}, "side must be one of client, server"),
        ({"operation": "Open"}, "lower-case word"),
        ({"done": 3}, "latency counts 2 operations, done is 3"),
        ({"scheduled": 2}, "more operations ended than were scheduled"),
        ({"late": 5}, "more operations were late"),
        ({"failures": "{}"}, "add up to failed"),
        ({"failures": '{"timeout": true}'}, "add up to failed"),
        ({"failures": json.dumps({"timeout": -1, "other": 2})}, "add up to failed"),
        ({"latency": "HISTFAAA"}, "latency is not a histogram"),
        ({"step_s": 0.0}, "step_s must be positive"),
        ({"bytes": -1}, "bytes must be at least 0"),
        ({"server": None}, "server is missing"),
        ({"rate": 1}, "unknown field 'rate'"),
    ],
)
def test_wrong_row_is_named_with_its_problem(changes: dict[str, Any], problem: str) -> None:
    [found] = find_operation_problems([make_row(), make_row(**changes)])
    assert found.startswith("operations[1]: ")
    assert problem in found
