"""What is large goes by age, everything else stays, on every database; see :mod:`store_contract`."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from sql_makers import make_measurement

from treehammer.collectors.record import Measurement
from treehammer.sql.packing import PACKED
from treehammer.sql.recording import Added
from treehammer.sql.retention import PRUNED_COLUMNS, Pruned, first_day
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store, check_database

DAYS = (20260101, 20260102, 20260103)


def recorded(day: int, **values: Any) -> Measurement:
    lists: dict[str, Any] = {name: [0.5, day / 7] for name in PACKED}
    own = {"log_excerpt": "said at the end", "read_latency_hist": [1, 2]}
    return make_measurement(job=str(day), day=day, extras={"hits": 1}, **{**lists, **own, **values})


@pytest.fixture
def given(store: Store) -> list[Measurement]:
    some = [recorded(day) for day in DAYS]
    store.add(some)
    return some


def rows(store: Store) -> dict[Any, dict[str, Any]]:
    return {row["day"]: dict(row) for row in store.measurements(Selection())}


def test_a_dry_run_tells_and_changes_nothing(store: Store, given: list[Measurement]) -> None:
    before = rows(store)
    told = store.prunable("logs", date(2026, 1, 3))
    assert told == Pruned("logs", date(2026, 1, 3), 2, 2 * len("said at the end"))
    passes = store.prunable("passes", date(2026, 1, 3))
    assert passes.measurements == 2
    assert 0 < passes.bytes < 2 * 16 * 2 * 8
    assert rows(store) == before


@pytest.mark.parametrize("what", ["passes", "logs"])
def test_what_is_older_goes_and_the_rest_stays(
    store: Store, url: str, given: list[Measurement], what: str
) -> None:
    before = rows(store)
    told = store.prunable(what, date(2026, 1, 3))
    assert store.prune(what, date(2026, 1, 3)) == told
    assert store.prunable(what, date(2026, 1, 3)).measurements == 0
    gone = PACKED if what == "passes" else ("log_excerpt",)
    for day, row in rows(store).items():
        expected = dict.fromkeys(gone, None) if day < 20260103 else {}
        assert row == {**before[day], **expected}
    assert check_database(url)["extra"] == 3  # which compares the roll-ups, too


def test_what_comes_home_once_more_is_known(store: Store, given: list[Measurement]) -> None:
    for what in ("passes", "logs"):
        store.prune(what, date(2026, 1, 2))
    assert store.add(given) == Added(0, 3)
    assert rows(store)[DAYS[0]]["log_excerpt"] is None
    other = recorded(DAYS[0], eff_job=0.25)
    assert store.add([other]) == Added(0, 0, (other.id,))
    # What has not gone by age still contradicts.
    other = recorded(DAYS[2], log_excerpt="something else")
    assert store.add([other]) == Added(0, 0, (other.id,))


def test_the_days_that_stay() -> None:
    assert first_day(1, date(2026, 3, 1)) == date(2026, 3, 1)
    assert first_day(30, date(2026, 3, 1)) == date(2026, 1, 31)
    assert {"log_excerpt", "pass_loop_wall_s"} < set(PRUNED_COLUMNS)
