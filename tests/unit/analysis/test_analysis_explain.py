"""Breakdown of wall time and diagnosis of CPU efficiency, in constructed cases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.analysis.descriptive import time_breakdown
from treehammer.analysis.descriptive.efficiency_diagnosis import (
    DIAGNOSIS_COLUMNS,
    Cause,
    diagnose_efficiency,
)
from treehammer.analysis.descriptive.time_breakdown import (
    TimePart,
    split_wall_time,
    sum_breakdowns,
)

NOTHING: dict[str, Any] = dict.fromkeys(DIAGNOSIS_COLUMNS)
#: A local read in two passes: 10 s of CPU, 3 of them decompression, and 1 s to load ROOT.
BUSY = {
    **NOTHING,
    "kind": "timed",
    "plausible": True,
    "run_mode": "solo",
    "payload_wall_s": 11.0,
    "payload_user_s": 11.0,
    "payload_sys_s": 0.0,
    "payload_run_queue_s": 0.0,
    "import_wall_s": 1.0,
    "import_user_s": 1.0,
    "import_sys_s": 0.0,
    "pass_loop_wall_s": [5.0, 5.0],
    "pass_loop_user_s": [5.0, 5.0],
    "pass_loop_sys_s": [0.0, 0.0],
    "pass_loop_run_queue_s": [0.0, 0.0],
    "perfstats_read_s": 0.0,
    "perfstats_unzip_s": 1.5,
    "passes_done": 2,
    "bytes_read": 50_000_000,
    "bytes_read_extra": 0,
    "read_calls": 1000,
    "address_family": "local",
    "client_cached_fraction": 1.0,
}
REMOTE = {"address_family": "IPv4", "client_cached_fraction": None}
#: Reads that wait for 20 s in each pass.
WAITING = {
    "payload_wall_s": 51.0,
    "pass_loop_wall_s": [25.0, 25.0],
    "perfstats_read_s": 20.0,
}

CASES: dict[Cause, dict[str, Any]] = {
    Cause.DESERIALIZATION: {},
    Cause.DECOMPRESSION: {"perfstats_unzip_s": 4.0},
    Cause.START: {
        "import_wall_s": 30.0,
        "import_user_s": 30.0,
        "payload_wall_s": 40.0,
        "payload_user_s": 40.0,
    },
    Cause.LOADING: {"import_wall_s": 31.0, "payload_wall_s": 41.0},
    Cause.CPU_SHORTAGE: {
        "payload_wall_s": 51.0,
        "payload_run_queue_s": 40.0,
        "pass_loop_wall_s": [25.0, 25.0],
        "pass_loop_run_queue_s": [20.0, 20.0],
    },
    Cause.CPU_LIMIT: {
        "payload_wall_s": 51.0,
        "payload_run_queue_s": 40.0,
        "pass_loop_wall_s": [25.0, 25.0],
        "pass_loop_run_queue_s": [20.0, 20.0],
        "cgroup_throttled_s": 39.0,
    },
    Cause.SLOW_READS: {**REMOTE, **WAITING, "door_rtt_s": 0.0002},
    Cause.LATENCY: {**REMOTE, **WAITING, "door_rtt_s": 0.02},
    Cause.COLD_CACHE: {**WAITING, "client_cached_fraction": 0.02},
    Cause.STAGE_IN: {"stagein_wall_s": 40.0, "stagein_cpu_s": 1.0, "stagein_bytes": 50_000_000},
    Cause.SETUP: {"setup_wall_s": 40.0, "setup_cpu_s": 1.0},
    Cause.OPEN: {"payload_wall_s": 41.0, "pass_open_wall_s": [15.0, 15.0]},
    Cause.OTHER: {"payload_wall_s": 41.0},
}


@pytest.mark.parametrize("cause", list(Cause))
def test_planted_cause_is_found(cause: Cause) -> None:
    row = {**BUSY, **CASES[cause]}
    diagnosis = diagnose_efficiency([row, row])
    assert diagnosis is not None
    assert diagnosis.cause is cause
    assert diagnosis.breakdown.executions == 2


def test_start_that_is_mostly_work_is_not_called_waiting() -> None:
    start = {"import_wall_s": 9.0, "import_user_s": 7.0}
    diagnosis = diagnose_efficiency(
        [{**BUSY, **start, "payload_wall_s": 19.0, "payload_user_s": 16.9}]
    )
    assert diagnosis is not None
    assert diagnosis.breakdown.efficiency < 0.9
    assert diagnosis.cause is Cause.START


def test_sentence_names_the_time_lost() -> None:
    diagnosis = diagnose_efficiency(
        [{**BUSY, **CASES[Cause.CPU_SHORTAGE], "load1_start": 5.0, "cores_allowed": 2}]
    )
    assert diagnosis is not None
    assert diagnosis.sentence == "waits for CPU, not for data: 40 of 51 s in the run queue"
    assert diagnosis.evidence == [
        "The node's load was 5.0 at the start (median); a job may use 2 cores."
    ]


def test_paired_executions_are_not_explained() -> None:
    assert diagnose_efficiency([{**BUSY, "run_mode": "paired"}]) is None
    assert sum_breakdowns([{**BUSY, "run_mode": "paired"}, BUSY]).executions == 1


def test_waits_for_a_cpu_outside_the_loop_are_not_counted_twice() -> None:
    parts = split_wall_time({**BUSY, "payload_wall_s": 16.0, "payload_run_queue_s": 3.0})
    assert parts[TimePart.RUN_QUEUE] == pytest.approx(3.0)
    assert parts[TimePart.START] == pytest.approx(0.5)
    assert parts[TimePart.OTHER] == pytest.approx(2.5)


SECONDS = st.none() | st.floats(0, 1e5)
PASSES = st.none() | st.lists(st.floats(0, 1e5), max_size=3)


@given(
    st.fixed_dictionaries(
        {
            name: PASSES if name.startswith("pass_") else SECONDS
            for name in DIAGNOSIS_COLUMNS
            if name.endswith("_s")
        }
    ),
    st.floats(0, 1e6),
)
def test_parts_add_up_to_the_wall_time(values: dict[str, Any], wall: float) -> None:
    row = {**NOTHING, **values, "run_mode": "solo"}
    # No loop is longer than its payload.
    row["payload_wall_s"] = wall + sum(row["pass_loop_wall_s"] or ())
    parts = split_wall_time(row)
    whole = row["payload_wall_s"] + sum(row[n] or 0.0 for n in ("setup_wall_s", "stagein_wall_s"))
    assert min(parts.values()) >= -1e-6
    assert sum(parts.values()) == pytest.approx(whole, abs=1e-5)
    assert sum_breakdowns([row]).wall_s == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(
    "variant", ["<script>", "[1]", '{"threads": "many"}', '{"threads": []}', ""]
)
def test_unreadable_variant_counts_one_thread(variant: str) -> None:
    assert time_breakdown._count_row_threads({"kind": "timed", "variant": variant}) == 1


def test_servers_are_named_by_door_with_their_upgrades() -> None:
    hour_us = 3_600_000_000
    served = [("stable", "v5.5.3", 1), ("testing", "v6.2.0", 3), ("testing", "v5.8.1", 2)]
    rows = [
        {**BUSY, "job_id": "j", "door": door, "server_version": version, "started_us": n * hour_us}
        for door, version, n in served
    ]
    found = diagnose_efficiency(rows)
    assert found is not None
    assert found.evidence[-1] == (
        "Storage servers: door stable: v5.5.3; "
        "door testing: v5.8.1, then v6.2.0 from 1970-01-01 03:00 UTC on."
    )
