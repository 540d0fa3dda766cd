"""The record's rules: the quick look and the close one agree about every record."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measurement_factory import full_measurement, make_measurement

from treehammer.collectors.record.measurement_record import (
    IDENTITY_METRICS,
    Measurement,
    RecordError,
    _find_reasons,
    _is_valid,
    find_record_problems,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE

NAMES = [metric.name for metric in CATALOGUE]
ODD: list[Any] = [
    None, "", "x", "a\x00b", "\ud800", "\U0001f600", "é" * 129, "x" * 128, "x" * 64, "x" * 65,
    "y" * 4000, "y" * 4001, 0, 1, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400, True,
    False, 0.0, -0.0, 1.5, 1e308, math.inf, -math.inf, math.nan, [], [1], [1.5], [1, 2.5], [True],
    [None], ["1"], [math.nan], [2**63], [10**400], (1, 2), {}, {"a": 1}, b"x", [[]], set(),
]  # fmt: skip


def agree(values: dict[str, Any], extras: dict[Any, Any]) -> None:
    assert _is_valid(values, extras) == (not _find_reasons(values, extras))


@pytest.mark.parametrize("metric", NAMES)
def test_both_looks_agree_about_every_field(metric: str) -> None:
    for base in (full_measurement(3), make_measurement()):
        for odd in ODD:
            agree({**base.values, metric: odd}, {})
        agree({name: value for name, value in base.values.items() if name != metric}, {})


@given(
    st.dictionaries(st.sampled_from([*NAMES, "nonsense"]), st.sampled_from(ODD), max_size=4),
    st.dictionaries(
        st.sampled_from(["a", "_", "a-b", "a\n", "", "é", "a" * 64, "a" * 65, 7]),
        st.sampled_from(ODD),
        max_size=3,
    ),
)
@settings(max_examples=500, derandomize=True, deadline=None)
def test_both_looks_agree_about_records(changes: dict[str, Any], extras: dict[Any, Any]) -> None:
    agree({**full_measurement(1).values, **changes}, extras)
    agree(changes, extras)


@pytest.mark.parametrize("name", IDENTITY_METRICS)
def test_what_names_rows_is_not_empty(name: str) -> None:
    values = {**make_measurement().values, name: ""}
    assert find_record_problems(values, {}) == [f"{name} must not be empty"]


def test_every_reason_is_told() -> None:
    values = {**make_measurement().values, "day": "x", "host": 3, "more": 1}
    with pytest.raises(RecordError, match="day must be") as caught:
        Measurement(values, {"-": 1})
    assert len(caught.value.problems) == 4
    with pytest.raises(RecordError) as other:
        Measurement.from_json("[")
    assert len(other.value.problems) == 1
