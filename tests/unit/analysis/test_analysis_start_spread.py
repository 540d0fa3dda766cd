"""Real starts of jobs that were to begin together."""

from __future__ import annotations

from typing import Any

import pytest

from treehammer.analysis.descriptive.start_spread import count_lonely_starts, summarize_starts
from treehammer.hctests.definition.model import LoadSettings

LOAD = LoadSettings(together=True, duration_s=100.0)


def row(index: int, offset_s: float | None, **changes: Any) -> dict[str, Any]:
    values = {
        "job_id": f"job {index}",
        "attempt": 1,
        "round": 1,
        "position": 1,
        "failure_class": None,
        "load_index": index,
        "load_jobs": 4,
        "start_state": "together",
        "start_planned_us": 5_000_000,
        "start_offset_s": offset_s,
        "clock_error_s": 0.002,
    }
    return {**values, **changes}


def test_spread_within_the_bound_is_good() -> None:
    (found,) = summarize_starts([row(n, 0.05 * n) for n in range(4)], LOAD)
    assert found.spread_s == pytest.approx(0.15)
    assert found.missing_load == pytest.approx(0.3 / 400)
    assert found.describe() == (
        "good: 4 of 4 jobs started together, spread 150 ms (at most 250 ms, clocks within 2.0 ms); "
        "0.1 % of the load missing"
    )


def test_inaccurate_clocks_leave_the_judgment_open() -> None:
    rows = [row(n, 0.05 * n, clock_error_s=0.06) for n in range(4)]
    assert summarize_starts(rows, LOAD)[0].judgment == "unclear"
    wide = [row(n, 0.1 * n, clock_error_s=0.01) for n in range(4)]
    assert summarize_starts(wide, LOAD)[0].judgment == "bad"


def test_late_and_absent_jobs_are_named() -> None:
    rows = [row(0, 0.0), row(1, 0.01), row(2, 20.0, start_state="late")]
    (found,) = summarize_starts(rows, LOAD)
    assert (found.started, found.late) == (3, 1)
    assert found.missing_load == pytest.approx((20.01 + 100) / 400)
    assert "bad: 3 of 4 jobs" in found.describe()
    assert "1 late, by up to 20.0 s; 30.0 % of the load missing" in found.describe()
    failed = [*rows, row(3, None, failure_class="submission", start_state="late")]
    assert summarize_starts(failed, LOAD)[0].missing_load == found.missing_load


def test_ramp_counts_what_was_planned() -> None:
    load = LoadSettings(together=True, ramp="2/50s", duration_s=100.0)
    (found,) = summarize_starts([row(n, 0.0) for n in range(3)], load)
    assert found.missing_load == pytest.approx(50 / 300)


def test_last_attempts_and_lonely_jobs_count() -> None:
    lonely = {"start_state": "alone", "start_planned_us": None, "start_offset_s": None}
    rows = [row(0, 9.0), row(0, 0.0, attempt=2), row(1, 0.0), row(2, None, **lonely)]
    assert summarize_starts(rows, LOAD)[0].started == 2
    assert count_lonely_starts(rows) == 1
    later = [row(0, 0.0, round=2, start_planned_us=6_000_000)]
    assert [one.start_us for one in summarize_starts([*rows, *later], LOAD)] == [
        5_000_000,
        6_000_000,
    ]
