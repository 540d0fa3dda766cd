"""Bulk writes equal single writes on every database."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa
from measurement_factory import STARTED_DAY, STARTED_US, full_measurement, make_measurement
from store_helpers import awkward_measurements, find_rollup_differences

from treehammer.collectors.record.failures import FAILURE_CLASSES
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.sql.arrow.arrow_schema import build_schema
from treehammer.sql.arrow.column_conversion import Problems
from treehammer.sql.core import packing, schema
from treehammer.sql.core.day_numbers import CALENDAR_DAYS, DAY_US
from treehammer.sql.core.measurement_view import ALL_COLUMNS, EXTRA_PREFIX
from treehammer.sql.write import bulk_recording, recording
from treehammer.sql.write.record_consistency import POSITIVE_COLUMNS, find_contradictions
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.backends("sqlite")


def to_table(measurements: list[Measurement]) -> pa.RecordBatch:
    extras = sorted({name for item in measurements for name in item.extras})
    columns = build_schema([*ALL_COLUMNS, *(EXTRA_PREFIX + name for name in extras)], {})
    rows = [
        {**item.values, **{EXTRA_PREFIX + name: value for name, value in item.extras.items()}}
        for item in measurements
    ]
    return pa.RecordBatch.from_pylist(rows, schema=columns)


def read_all_tables(store: Store) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, but sums, of which the last bits depend on the order."""
    with store._engine.connect() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for table in schema.metadata.sorted_tables
            if table is not schema.rollup_day
        }


@pytest.fixture
def scratch_store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/other.db") as opened:
        yield opened


@pytest.mark.backends("sqlite", "postgresql")
def test_bulk_write_equals_single_writes(store: Store, scratch_store: Store) -> None:
    days = [{"day": STARTED_DAY + n, "started_us": STARTED_US + n * DAY_US} for n in range(3)]
    measurements = [
        *awkward_measurements(),
        *(make_measurement(job=f"j{n}", **days[n % 3], eff_job=n / 7) for n in range(40)),
    ]
    random.Random(1).shuffle(measurements)
    scratch_store.add(measurements)
    problems: Problems = defaultdict(list)
    for half in (measurements[:30], measurements[20:]):
        store.add_table(to_table(half), problems)
    assert not problems
    assert read_all_tables(store) == read_all_tables(scratch_store)
    assert find_rollup_differences(store) == ""


@pytest.mark.backends("sqlite", "postgresql")
def test_new_valid_rows_use_column_path(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one: list[int] = []
    monkeypatch.setattr(
        recording, "_insert_measurements", lambda _, new: one_by_one.append(len(new))
    )
    measurements = [*awkward_measurements()]
    problems: Problems = defaultdict(list)
    added = store.add_table(to_table(measurements), problems)
    assert added == AddResult(len(measurements), 0)
    assert store.add_table(to_table(measurements), problems) == AddResult(0, len(measurements))
    assert sum(one_by_one) == 0


@pytest.mark.backends("sqlite", "postgresql")
def test_duplicates_and_conflicts_in_one_batch(store: Store) -> None:
    one, two = make_measurement(), make_measurement(host="other")
    problems: Problems = defaultdict(list)
    added = store.add_table(to_table([one, two, one]), problems)
    assert (added.new, added.known, added.conflicting) == (1, 1, (one.id,))
    assert not problems


def test_column_and_row_validation_agree(store: Store) -> None:
    """In each row one value is changed, to what is nearly right or not quite wrong."""
    odd: dict[str, list[Any]] = {
        **{name: [0, -1, 2, -(2**63)] for name in POSITIVE_COLUMNS},
        "record_version": [0, 2],
        "kind": ["", "Timed", "timed ", "checksum", "good"],
        "failure_class": ["", None, "good", "implausible", "stage in", *FAILURE_CLASSES],
        "variant": [
            "",
            "x",
            "null",
            "[1]",
            '{"a": null}',
            '{"a": [1]}',
            '{"a": NaN}',
            '{"a": 1.5}',
            '{"a": 1e300, "b": true}',
            '{"a": "\\ud800"}',
            '{"a\\u0000": 1}',
            *(f'{{"a": {number}}}' for number in (10**400, 2**63, 2**63 - 1, -(2**63))),
        ],
        "implausible_reasons": ["", "too short", None],
        "read_latency_hist": [[], None, [0, 3], [1, -1], [-5]],
        "day": [STARTED_DAY - 1, STARTED_DAY + 1, 20260229, 0, -1, 2**63 - 1],
        "started_us": [STARTED_US - 1, STARTED_US + DAY_US - 1, STARTED_US + DAY_US, -1, 2**62],
        "measurement_id": ["x", "é" * 24],
        "job_id": ["job 0"],
    }
    items = [
        Measurement({**make_measurement(job=f"{name} {place}").values, name: value})
        for name, values in odd.items()
        for place, value in enumerate(values)
    ]
    for day, us in (
        (19700101, 0),
        (99991231, CALENDAR_DAYS * DAY_US - 1),
        (20240229, 1_709_164_800_000_000),
    ):
        for late in (0, 1):
            items.append(make_measurement(job=f"{day} {late}", day=day, started_us=us + late))
    wrong = {row for row, item in enumerate(items) if find_contradictions(item.values)}
    table = to_table(items)
    sound = bulk_recording._find_valid_rows(bulk_recording._nullify_empty_text(table))
    assert {*np.flatnonzero(~sound)} == wrong
    problems: Problems = defaultdict(list)
    assert store.add_table(table, problems) == AddResult(len(items) - len(wrong), 0)
    assert {row: "; ".join(find_contradictions(items[row].values)) for row in wrong} == {
        row: reason for row, (reason,) in problems.items()
    }


@pytest.mark.backends("sqlite", "postgresql")
def test_empty_batch(store: Store) -> None:
    assert store.add_table(to_table([]), defaultdict(list)) == AddResult(0, 0)


def test_bulk_list_packing_equals_single() -> None:
    values = random.Random(1)
    rows = [
        {
            name: [values.random() for _ in range(values.randrange(4))]
            if values.random() < 0.7
            else None
            for name in packing.PACKED_COLUMNS
        }
        for _ in range(50)
    ] + [dict.fromkeys(packing.PACKED_COLUMNS)]
    lengths = [
        [-1 if row[n] is None else len(row[n] or []) for n in packing.PACKED_COLUMNS]
        for row in rows
    ]
    numbers = [
        np.array([number for row in rows for number in row[name] or []])
        for name in packing.PACKED_COLUMNS
    ]
    packed = packing.pack_columns(np.array(lengths, np.int32), numbers)
    assert packed == [packing.pack_lists(row) for row in rows]


def test_all_float_lists_are_packed() -> None:
    assert {metric.name for metric in CATALOGUE if metric.type == "floats"} == {
        *packing.PACKED_COLUMNS
    }
    assert full_measurement().values.keys() >= {*packing.PACKED_COLUMNS}
