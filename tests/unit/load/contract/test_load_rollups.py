"""Daily operations of load tests on each backend."""

from __future__ import annotations

from typing import Any

import pytest
from measurement_factory import STARTED_DAY, make_measurement, make_operation

from treehammer.load.operation_figures import list_operation_days
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


def test_days_of_storages_have_their_operations_and_round_trips(store: Store) -> None:
    cases: dict[str, dict[str, Any]] = {
        "a": {"site": "X", "storage_site": "A", "door_rtt_s": 0.25},
        "b": {"site": "A", "storage_site": "A", "door_rtt_s": 0.75},
        "c": {"site": "A", "storage_site": "A", "plausible": False},
        "d": {"site": "B", "day": STARTED_DAY + 1},
        "e": {"site": "A", "day": STARTED_DAY - 1},
    }
    for job, values in cases.items():
        limited = make_operation([9.0], operation="read", step=1, generator_limited=True)
        server = make_operation([9.0], operation="read", side="server")
        steps = [make_operation([1.0] * 3, {"reset": 1}, operation="read"), limited, server]
        store.add([make_measurement(job, operations=steps, **values)])
    rows = list_operation_days(store, STARTED_DAY, STARTED_DAY + 1)
    assert {(row.site, row.day - STARTED_DAY, row.round_trip_s) for row in rows} == {
        ("A", 0, 0.25),
        ("A", 0, 0.75),
        ("B", 1, None),
    }
    for row in rows:
        assert (row.operation, row.done, row.failed, row.limited_steps) == ("read", 3, 1, 1)
        assert row.latency.mean == pytest.approx(1.0, rel=0.01)
    with store.snapshot() as snapshot:
        assert snapshot.count_operation_rows(Selection()) == 15
        assert snapshot.count_operation_rows(Selection.parse((), ["site=A"])) == 9
        assert snapshot.count_operation_rows(Selection(("none",))) == 0
