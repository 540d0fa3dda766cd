"""Rates of a read and the bottleneck of its loop."""

from __future__ import annotations

from typing import Any

import pytest

from treehammer.analysis.descriptive.time_breakdown import RATE_COLUMNS, ReadRates, TimePart

#: Two passes of 2 s: 0.8 s of decompression and 1.2 s of other CPU time each.
ROW: dict[str, Any] = {
    **dict.fromkeys(RATE_COLUMNS),
    "axis_root": "6.40.00",
    "kind": "timed",
    "run_mode": "solo",
    "payload_wall_s": 6.0,
    "events_read": 1000,
    "branches_selected": 3,
    "selected_zip_bytes": 10_000_000,
    "loop_unzipped_bytes": 40_000_000,
    "wall_per_event_s": 0.002,
    "cpu_per_event_s": 0.002,
    "eff_loop": 1.0,
    "passes_counted": 1,
    "open_wall_s": 0.1,
    "get_tree_wall_s": 0.2,
    "prepare_wall_s": 0.3,
    "pass_loop_wall_s": [2.0, 2.0],
    "pass_loop_user_s": [1.5, 1.5],
    "pass_loop_sys_s": [0.5, 0.5],
    "pass_loop_run_queue_s": [0.0, 0.0],
    "perfstats_read_s": 0.0,
    "perfstats_unzip_s": 0.8,
}
#: The same CPU time within 10 s a pass.
SLOW = {"wall_per_event_s": 0.01, "pass_loop_wall_s": [10.0, 10.0]}


def test_rates_are_of_the_median_pass() -> None:
    rates = ReadRates.from_row(ROW)
    assert (rates.events_per_s, rates.wall_s, rates.cpu_s) == pytest.approx((500, 2.0, 2.0))
    assert rates.zipped_mb_per_s == pytest.approx(5.0)
    assert rates.unzipped_mb_per_s == pytest.approx(20.0)
    assert rates.open_s == pytest.approx(0.6)
    flat = rates.flatten()
    assert (flat["branches"], flat["passes"]) == (3, 1)


def test_bytes_of_an_rntuple_are_those_of_its_pages() -> None:
    rates = ReadRates.from_row(
        {**ROW, "loop_unzipped_bytes": None, "ntuple_unzipped_bytes": 20_000_000}
    )
    assert rates.unzipped_mb_per_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    "changes, part, text",
    [
        (
            {},
            TimePart.DESERIALIZATION,
            "CPU bound: 60 % deserialization and the loop, 40 % decompression",
        ),
        (
            {"perfstats_unzip_s": 1.96},
            TimePart.DECOMPRESSION,
            "CPU bound: 98 % decompression",
        ),
        (
            {**SLOW, "perfstats_read_s": 8.0},
            TimePart.READS,
            "I/O bound: 80 % waiting for reads, 12 % deserialization and the loop, 8 % decompression",
        ),
        (
            {**SLOW, "pass_loop_run_queue_s": [8.0, 8.0], "perfstats_unzip_s": 0.0},
            TimePart.RUN_QUEUE,
            "short of CPU: 80 % waiting for a CPU that other work uses, 20 % deserialization and the loop",
        ),
        (
            {**SLOW, "perfstats_unzip_s": 0.0},
            TimePart.OTHER,
            "waiting: 80 % waiting outside of reads, or idle threads, 20 % deserialization and the loop",
        ),
    ],
)
def test_largest_part_of_the_loop_is_the_bottleneck(
    changes: dict[str, Any], part: TimePart, text: str
) -> None:
    rates = ReadRates.from_row({**ROW, **changes})
    assert rates.bottleneck is part
    assert rates.describe_bottleneck() == text
    assert sum(rates.shares.values()) == pytest.approx(1.0)
