"""Validation and conversion of whole columns, as if each value were taken alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from measurement_factory import full_measurement

from treehammer.collectors.record.measurement_record import (
    Measurement,
    RecordError,
    describe_value_error,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Metric
from treehammer.sql.transfer.arrow_columns import (
    ARROW_TYPES,
    Problems,
    convert_column,
    find_valid_columns,
    list_rows,
    list_values,
)

#: Values of each kind that fit its type, valid for some metrics and invalid for others.
CANDIDATES: dict[str, list[Any]] = {
    "text": ["", "a", "a\0b", "x" * 100_000, "{}", "[]", "0" * 24],
    "int": [-(2**63), -1, 0, 1, 20_260_101, 2**63 - 1],
    "float": [-1.5, 0.0, 1e300, float("inf"), float("-inf"), float("nan")],
    "bool": [True, False],
    "ints": [[], [0, 1], [-1], [3, -(2**63)]],
    "floats": [[], [0.0, 1.0], [float("nan"), 1.0], [float("inf")], [-1.0, 2.0]],
}


def is_valid_column(metric: Metric, values: list[Any]) -> bool:
    column = pa.array(values, ARROW_TYPES[metric.type])
    return metric.name in find_valid_columns(pa.record_batch({metric.name: column}))


def test_column_is_valid_only_if_all_values_are() -> None:
    usual_values = full_measurement(1).values
    for metric in CATALOGUE:
        usual = usual_values[metric.name]
        assert is_valid_column(metric, [usual, usual]), metric.name
        for value in CANDIDATES[metric.type]:
            is_valid = not describe_value_error(metric, value)
            assert is_valid_column(metric, [usual, value, usual]) == is_valid, (metric.name, value)
            assert is_valid_column(metric, [value]) <= is_valid, (metric.name, value)


def test_unknown_values_count_as_empty_texts_where_required() -> None:
    usual_values = full_measurement(1).values
    for metric in CATALOGUE:
        is_empty_text = metric.type == "text" and not describe_value_error(metric, "")
        found = is_valid_column(metric, [usual_values[metric.name], None])
        assert found == (is_empty_text or not metric.required), metric.name


def test_checked_values_are_not_checked_again() -> None:
    values = {**full_measurement(1).values, "events": -1, "cpu_per_event_s": "fast"}
    with pytest.raises(RecordError, match="events"):
        Measurement(values)
    with pytest.raises(RecordError, match=r"^cpu_per_event_s must be a finite number$"):
        Measurement(values, unchecked=["cpu_per_event_s", "job_id"])
    del values["job_id"]
    with pytest.raises(RecordError, match=r"^job_id is missing$"):
        Measurement(values, unchecked=["host", "job_id"])


@pytest.mark.parametrize("kind", ARROW_TYPES)
def test_listed_values_equal_those_of_arrow(kind: str) -> None:
    some = [one for one in CANDIDATES[kind] if "nan" not in str(one)]
    for values in (some, [None, *some, None], [None, None], []):
        column = pa.array(values, ARROW_TYPES[kind])
        for part in (column, column.slice(1), column.slice(1, 2)):
            listed = list_values(part, None)
            assert listed == part.to_pylist()
            assert list(map(type, listed)) == list(map(type, part.to_pylist()))
    assert list_values(pa.array(["a", None, "a"]), "") == ["a", "", "a"]


TEXTS = ["a", None, "b", "a", "é"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(["c", *TEXTS]).dictionary_encode().slice(1),
        pa.array(TEXTS, pa.large_string()).dictionary_encode(),
        pa.DictionaryArray.from_arrays(
            pa.array([1, None, 2, 1, 3], pa.int8()), pa.array([None, "a", "b", "é"])
        ),
        pa.DictionaryArray.from_arrays(
            pa.array([0, None, 1, 0, 2], pa.uint64()), pa.array(["a", "b", "é", *"cdefg"])
        ),
    ],
    ids=lambda column: str(column.type),
)
def test_texts_become_dictionary(column: pa.Array) -> None:
    problems: Problems = defaultdict(list)
    converted = convert_column(column, "host", "text", problems)
    assert converted.type == pa.dictionary(pa.int32(), pa.string())
    assert converted.to_pylist() == list_values(converted, None) == TEXTS
    assert not problems


def test_only_damaged_texts_are_refused() -> None:
    damaged = pa.array([b"a", b"\xff", None, b"b", b"\xff"]).view(pa.string())
    for column in (damaged, damaged.dictionary_encode()):
        problems: Problems = defaultdict(list)
        converted = convert_column(column, "host", "text", problems)
        assert list_values(converted, "") == ["a", "", "", "b", ""]
        assert problems == {1: ["host must be UTF-8"], 4: ["host must be UTF-8"]}


def test_places_outside_dictionary_are_refused() -> None:
    places = pa.array([0, 2, None, -1], pa.int32())
    column = pa.DictionaryArray.from_arrays(places, pa.array(["a", "b"]), safe=False)
    problems: Problems = defaultdict(list)
    converted = convert_column(column, "host", "text", problems)
    assert list_values(converted, None) == ["a", None, None, None]
    assert sorted(problems) == [1, 3]


def test_rows_share_values_of_equal_columns() -> None:
    values = full_measurement(1).values
    texts = {name: pa.array([values[name]] * 2).dictionary_encode() for name in ("host", "kind")}
    batch = pa.record_batch(
        {**texts, "eff_job": pa.array([0.5, None]), "door": pa.nulls(2), "ref": pa.nulls(2)}
    )
    same = {"host": values["host"], "kind": values["kind"], "door": "", "ref": None}
    assert list(list_rows(batch)) == [({**same, "eff_job": number}, {}) for number in (0.5, None)]
    assert list(list_rows(batch.select([*same]).slice(1))) == [(same, {})]
