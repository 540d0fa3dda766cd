"""Daily operations of load tests, and the merge of old time steps, on each backend."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from measurement_factory import STARTED_DAY, make_measurement, make_operation

from treehammer.load.operation_figures import list_operation_days, load_operations
from treehammer.sql.read.measurement_queries import restore_operation
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import AddResult
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


DAYS = (20260101, 20260102, 20260103)


def test_old_time_steps_are_merged(store: Store, url: str) -> None:
    steps = [
        make_operation([0.001] * 9, step=0, clients=2),
        make_operation([2.0], {"reset": 1}, step=1, clients=5, generator_cpu=0.5),
        make_operation([9.0], step=2, generator_limited=True),
        make_operation([], operation="read", server="s"),
    ]
    rows = [make_measurement(str(day), day=day, operations=steps) for day in DAYS]
    store.add(rows)
    foreseen = store.prunable("operations", date(2026, 1, 3))
    assert foreseen.measurements == 2
    assert foreseen.bytes > 0
    assert store.prune("operations", date(2026, 1, 3)) == foreseen
    assert store.prunable("operations", date(2026, 1, 3)).measurements == 0
    with store.snapshot() as snapshot:
        old, recent = (snapshot.operations_of([rows[n].id])[rows[n].id] for n in (0, 2))
        [opened, _] = load_operations(snapshot, Selection.parse(wheres=[f"day={DAYS[0]}"]))
    assert (len(old), len(recent)) == (3, 4)
    merged = old[0]
    assert [merged[n] for n in ("step", "step_s", "clients", "done", "failed")] == [0, 20, 5, 10, 1]
    assert merged["failures"] == '{"reset": 1}'
    assert merged["generator_cpu"] == 0.3125
    assert (opened.limited_steps, opened.seconds, opened.latency.count) == (1, 20.0, 10)
    assert check_database(url)["operation"] == 10  # which compares the roll-ups, too
    assert store.add(rows) == AddResult(0, 3)
    other = make_measurement(str(DAYS[0]), day=DAYS[0], operations=[*steps[:3], *steps[2:]])
    assert store.add([other]) == AddResult(0, 0, (other.id,))
    pruned = make_measurement(
        str(DAYS[0]), day=DAYS[0], operations=[restore_operation(row) for row in old]
    )
    assert store.add([pruned]) == AddResult(0, 1)
