"""Validation of the measurement record."""

from __future__ import annotations

import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measurement_factory import STARTED_DAY, STARTED_US, full_measurement, make_measurement

from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.measurement_record import (
    Measurement,
    RecordError,
    build_record_schema,
    describe_value_error,
    find_record_problems,
    make_measurement_id,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE, IDENTITY_METRICS, Metric
from treehammer.collectors.record.outcome import FAILURE_CLASSES

NAMES = [metric.name for metric in CATALOGUE]
#: Values of every type, at and beyond every limit.
ODD: list[Any] = [
    None, "", "x", "a\x00b", "\ud800", "\U0001f600", "é" * 129, "x" * 128, "x" * 64, "x" * 65,
    "y" * 4000, "y" * 4001, 0, 1, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400, True,
    False, 0.0, -0.0, 1.5, 1e308, math.inf, -math.inf, math.nan, [], [1], [1.5], [1, 2.5], [True],
    [None], ["1"], [math.nan], [2**63], [10**400], (1, 2), {}, {"a": 1}, b"x", [[]], set(),
]  # fmt: skip
#: Those of them that JSON can express and JSON Schema can tell apart.
JSON_VALUES: list[Any] = [
    "", "x", "a\x00b", "é" * 129, "x" * 128, "x" * 64, "x" * 65, "y" * 4000, "y" * 4001, 0, 1, -1,
    2**63 - 1, -(2**63), True, False, 1.5, [], [1], [1, 2.5], [-1], [True], [None], ["1"], {}, [[]],
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from([*NAMES, "nonsense"]), st.sampled_from(ODD), max_size=4),
    st.dictionaries(
        st.sampled_from(["a", "_", "a-b", "a\n", "", "é", "a" * 64, "a" * 65, 7]),
        st.sampled_from(ODD),
        max_size=3,
    ),
)
@settings(max_examples=150, derandomize=True)
def test_validation_of_any_value_never_raises(
    changes: dict[str, Any], extras: dict[Any, Any]
) -> None:
    for values in ({**full_measurement(1).values, **changes}, changes):
        assert isinstance(find_record_problems(values, extras), list)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_schema_and_validation_agree(metric: Metric) -> None:
    described = build_record_schema()["properties"]["values"]["properties"][metric.name]
    schema = jsonschema.Draft202012Validator(described)
    for value in JSON_VALUES:
        if metric.name == "variant" and isinstance(value, str):
            continue  # JSON Schema does not look into a text.
        assert schema.is_valid(value) == (describe_value_error(metric, value) == ""), value


@pytest.mark.parametrize(
    "name, valid, invalid",
    [
        *((name, [1, 2], [0, -1, -(2**63)]) for name in ("attempt", "repeat", "round", "position")),
        ("record_version", [1], [0, 2]),
        ("kind", ["timed", "checksum"], ["", "Timed", "timed ", "good"]),
        ("failure_class", ["", None, *FAILURE_CLASSES], ["good", "implausible", "stage in"]),
        (
            "variant",
            ["{}", '{"a": 1.5}', '{"a": 1e300, "b": true}', f'{{"a": {2**63 - 1}}}'],
            [
                "",
                "x",
                "null",
                "[1]",
                '{"a": null}',
                '{"a": [1]}',
                '{"a": NaN}',
                '{"a": "\\ud800"}',
                '{"a\\u0000": 1}',
                f'{{"a": {2**63}}}',
                f'{{"a": {10**400}}}',
            ],
        ),
        ("implausible_reasons", ["", None], ["too short"]),
        ("read_latency_hist", [[], None, [0, 3]], [[1, -1], [-5]]),
        ("day", [STARTED_DAY], [STARTED_DAY - 1, STARTED_DAY + 1, 20260229, 0, -1, 2**63 - 1]),
        (
            "started_us",
            [STARTED_US, STARTED_US + DAY_US - 1],
            [STARTED_US - 1, STARTED_US + DAY_US, -1, 2**62],
        ),
        ("measurement_id", [], ["x", "é" * 24]),
        ("job_id", [], ["another job"]),
    ],
)
def test_values_that_cannot_have_been_measured_are_refused(
    name: str, valid: list[Any], invalid: list[Any]
) -> None:
    identity = ("job_id", "attempt", "round", "position")

    def problems(value: Any) -> list[str]:
        values = {**make_measurement().values, name: value}
        if name in identity[1:]:
            values["measurement_id"] = make_measurement_id(*(values[part] for part in identity))
        return find_record_problems(values, {})

    assert [problems(value) for value in valid] == [[]] * len(valid)
    assert [value for value in invalid if len(problems(value)) != 1] == []


@pytest.mark.parametrize(
    "day, midnight_us",
    [(20000101, 946_684_800_000_000), (20240229, 1_709_164_800_000_000)],
)
def test_day_must_be_that_of_the_start(day: int, midnight_us: int) -> None:
    for started_us in (midnight_us, midnight_us + DAY_US - 1):
        assert not find_record_problems(make_measurement(day=day, started_us=started_us).values, {})
    for started_us in (midnight_us - 1, midnight_us + DAY_US):
        values = {**make_measurement(day=day).values, "started_us": started_us}
        with pytest.raises(RecordError, match="started_us"):
            Measurement.from_document({"values": values, "extras": {}})


@pytest.mark.parametrize("day", [0, 10_956, 10_957, 2_932_896])
def test_starts_outside_of_the_years_of_measuring_are_refused(day: int) -> None:
    values = {
        **make_measurement().values,
        "day": epoch_day_to_number(day),
        "started_us": day * DAY_US,
    }
    document = {"values": values, "extras": {}}
    if day == 10_957:  # 2000-01-01
        assert Measurement.from_document(document).values == values
        return
    with pytest.raises(RecordError, match="set the clock of the node"):
        Measurement.from_document(document)


@pytest.mark.parametrize("name", IDENTITY_METRICS)
def test_identity_must_not_be_empty(name: str) -> None:
    values = {**make_measurement().values, name: ""}
    assert find_record_problems(values, {}) == [f"{name} must not be empty"]


def test_every_problem_is_reported() -> None:
    values = {**make_measurement().values, "day": "x", "host": 3, "more": 1}
    with pytest.raises(RecordError, match="day must be") as caught:
        Measurement(values, {"-": 1})
    assert len(caught.value.problems) == 4
    with pytest.raises(RecordError) as other:
        Measurement.from_json("[")
    assert len(other.value.problems) == 1
