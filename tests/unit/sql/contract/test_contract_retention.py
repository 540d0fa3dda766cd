"""Pruning of old columns on every database."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from measurement_factory import make_measurement

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.packing import PACKED_COLUMNS
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.database_check import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.retention import PRUNED_COLUMNS, PruneResult, first_kept_day
from treehammer.sql.write.store import Store

DAYS = (20260101, 20260102, 20260103)


def build_measurement(day: int, **values: Any) -> Measurement:
    lists: dict[str, Any] = {name: [0.5, day / 7] for name in PACKED_COLUMNS}
    own = {"log_excerpt": "said at the end", "read_latency_hist": [1, 2]}
    return make_measurement(job=str(day), day=day, extras={"hits": 1}, **{**lists, **own, **values})


@pytest.fixture
def filled_store(store: Store) -> list[Measurement]:
    some = [build_measurement(day) for day in DAYS]
    store.add(some)
    return some


def read_rows(store: Store) -> dict[Any, dict[str, Any]]:
    return {row["day"]: dict(row) for row in store.measurements(Selection())}


def test_dry_run_changes_nothing(store: Store, filled_store: list[Measurement]) -> None:
    before = read_rows(store)
    told = store.prunable("logs", date(2026, 1, 3))
    assert told == PruneResult("logs", date(2026, 1, 3), 2, 2 * len("said at the end"))
    passes = store.prunable("passes", date(2026, 1, 3))
    assert passes.measurements == 2
    assert 0 < passes.bytes < 2 * 16 * 2 * 8
    assert read_rows(store) == before


@pytest.mark.parametrize("what", ["passes", "logs"])
def test_old_columns_are_pruned(
    store: Store, url: str, filled_store: list[Measurement], what: str
) -> None:
    before = read_rows(store)
    told = store.prunable(what, date(2026, 1, 3))
    assert store.prune(what, date(2026, 1, 3)) == told
    assert store.prunable(what, date(2026, 1, 3)).measurements == 0
    gone = PACKED_COLUMNS if what == "passes" else ("log_excerpt",)
    for day, row in read_rows(store).items():
        expected = dict.fromkeys(gone, None) if day < 20260103 else {}
        assert row == {**before[day], **expected}
    assert check_database(url)["extra"] == 3  # which compares the roll-ups, too


def test_pruned_measurement_is_recognized(store: Store, filled_store: list[Measurement]) -> None:
    for what in ("passes", "logs"):
        store.prune(what, date(2026, 1, 2))
    assert store.add(filled_store) == AddResult(0, 3)
    assert read_rows(store)[DAYS[0]]["log_excerpt"] is None
    other = build_measurement(DAYS[0], eff_job=0.25)
    assert store.add([other]) == AddResult(0, 0, (other.id,))
    # Permanent columns still conflict.
    other = build_measurement(DAYS[2], log_excerpt="something else")
    assert store.add([other]) == AddResult(0, 0, (other.id,))


def test_kept_days() -> None:
    assert first_kept_day(1, date(2026, 3, 1)) == date(2026, 3, 1)
    assert first_kept_day(30, date(2026, 3, 1)) == date(2026, 1, 31)
    assert {"log_excerpt", "pass_loop_wall_s"} < set(PRUNED_COLUMNS)
