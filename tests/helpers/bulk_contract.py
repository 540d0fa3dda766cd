"""Many measurements at once enter the database as one by one; see :mod:`store_contract`."""

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
from import_contract import awkward, different_rollups
from sql_makers import DAY, STARTED_US, full_measurement, make_measurement

from treehammer.collectors.failures import CLASSES
from treehammer.collectors.metrics import CATALOGUE
from treehammer.collectors.record import Measurement
from treehammer.sql import bulk_recording, packing, recording, schema
from treehammer.sql.arrow import describe
from treehammer.sql.columns import Problems
from treehammer.sql.contradictions import COUNTS, contradictions
from treehammer.sql.days import COUNT, DAY_US
from treehammer.sql.recording import Added
from treehammer.sql.store import Store
from treehammer.sql.wide import ALL_COLUMNS, EXTRA_PREFIX


def table_of(measurements: list[Measurement]) -> pa.RecordBatch:
    extras = sorted({name for item in measurements for name in item.extras})
    columns = describe([*ALL_COLUMNS, *(EXTRA_PREFIX + name for name in extras)], {})
    rows = [
        {**item.values, **{EXTRA_PREFIX + name: value for name, value in item.extras.items()}}
        for item in measurements
    ]
    return pa.RecordBatch.from_pylist(rows, schema=columns)


def content(store: Store) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, but sums, of which the last bits depend on the order."""
    with store._engine.connect() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for table in schema.metadata.sorted_tables
            if table is not schema.rollup_day
        }


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/other.db") as opened:
        yield opened


def test_every_table_is_the_same(store: Store, other: Store) -> None:
    days = [{"day": DAY + n, "started_us": STARTED_US + n * DAY_US} for n in range(3)]
    measurements = [
        *awkward(),
        *(make_measurement(job=f"j{n}", **days[n % 3], eff_job=n / 7) for n in range(40)),
    ]
    random.Random(1).shuffle(measurements)
    other.add(measurements)
    problems: Problems = defaultdict(list)
    for half in (measurements[:30], measurements[20:]):
        store.add_table(table_of(half), problems)
    assert not problems
    assert content(store) == content(other)
    assert different_rollups(store) == ""


def test_what_is_new_and_sound_goes_in_by_columns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one: list[int] = []
    monkeypatch.setattr(recording, "_insert", lambda _, new: one_by_one.append(len(new)))
    measurements = [*awkward()]
    problems: Problems = defaultdict(list)
    added = store.add_table(table_of(measurements), problems)
    assert added == Added(len(measurements), 0)
    assert store.add_table(table_of(measurements), problems) == Added(0, len(measurements))
    assert sum(one_by_one) == 0


def test_duplicates_and_conflicts_in_one_table(store: Store) -> None:
    one, two = make_measurement(), make_measurement(host="other")
    problems: Problems = defaultdict(list)
    added = store.add_table(table_of([one, two, one]), problems)
    assert (added.new, added.known, added.conflicting) == (1, 1, (one.id,))
    assert not problems


def test_columns_and_rows_are_judged_alike(store: Store) -> None:
    """In each row one value is changed, to what is nearly right or not quite wrong."""
    odd: dict[str, list[Any]] = {
        **{name: [0, -1, 2, -(2**63)] for name in COUNTS},
        "record_version": [0, 2],
        "kind": ["", "Timed", "timed ", "checksum", "good"],
        "failure_class": ["", None, "good", "implausible", "stage in", *CLASSES],
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
        "implausible_why": ["", "too short", None],
        "read_latency_hist": [[], None, [0, 3], [1, -1], [-5]],
        "day": [DAY - 1, DAY + 1, 20260229, 0, -1, 2**63 - 1],
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
        (99991231, COUNT * DAY_US - 1),
        (20240229, 1_709_164_800_000_000),
    ):
        for late in (0, 1):
            items.append(make_measurement(job=f"{day} {late}", day=day, started_us=us + late))
    wrong = {row for row, item in enumerate(items) if contradictions(item.values)}
    table = table_of(items)
    sound = bulk_recording._sound(bulk_recording._without_empty_text(table))
    assert {*np.flatnonzero(~sound)} == wrong
    problems: Problems = defaultdict(list)
    assert store.add_table(table, problems) == Added(len(items) - len(wrong), 0)
    assert {row: "; ".join(contradictions(items[row].values)) for row in wrong} == {
        row: reason for row, (reason,) in problems.items()
    }


def test_an_empty_table(store: Store) -> None:
    assert store.add_table(table_of([]), defaultdict(list)) == Added(0, 0)


def test_lists_are_packed_as_one_by_one() -> None:
    values = random.Random(1)
    rows = [
        {
            name: [values.random() for _ in range(values.randrange(4))]
            if values.random() < 0.7
            else None
            for name in packing.PACKED
        }
        for _ in range(50)
    ] + [dict.fromkeys(packing.PACKED)]
    lengths = [
        [-1 if row[n] is None else len(row[n] or []) for n in packing.PACKED] for row in rows
    ]
    numbers = [
        np.array([number for row in rows for number in row[name] or []]) for name in packing.PACKED
    ]
    packed = packing.pack_columns(np.array(lengths, np.int32), numbers)
    assert packed == [packing.pack(row) for row in rows]


def test_the_catalogue_has_no_list_of_floats_that_is_not_packed() -> None:
    assert {metric.name for metric in CATALOGUE if metric.type == "floats"} == {*packing.PACKED}
    assert full_measurement().values.keys() >= {*packing.PACKED}
