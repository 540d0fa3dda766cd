"""Breakdown of wall time, rates of a read, diagnosis of CPU efficiency, and ``treehammer explain``."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measurement_factory import make_campaign_row, make_measurement
from repository_code import call_command

from treehammer import config
from treehammer.analysis.descriptive.efficiency_diagnosis import (
    DIAGNOSIS_COLUMNS,
    Cause,
    diagnose_efficiency,
)
from treehammer.analysis.descriptive.time_breakdown import (
    RATE_COLUMNS,
    ReadRates,
    TimePart,
    sum_breakdowns,
)
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.write.store import Store

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
WAITING = {"payload_wall_s": 51.0, "pass_loop_wall_s": [25.0, 25.0], "perfstats_read_s": 20.0}
#: Passes that are in the run queue for 20 s each.
QUEUED = {
    "payload_wall_s": 51.0,
    "payload_run_queue_s": 40.0,
    "pass_loop_wall_s": [25.0, 25.0],
    "pass_loop_run_queue_s": [20.0, 20.0],
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
    Cause.CPU_SHORTAGE: QUEUED,
    Cause.CPU_LIMIT: {**QUEUED, "cgroup_throttled_s": 39.0},
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
    solo = {**BUSY, **QUEUED, "job_id": "solo", "cpu_steal_s": 1.0}
    paired = {**solo, "job_id": "paired", "run_mode": "paired", "cpu_steal_s": 2.0}
    assert diagnose_efficiency([paired, solo]) == diagnose_efficiency([solo])


def test_waits_for_a_cpu_outside_the_loop_are_not_counted_twice() -> None:
    parts = sum_breakdowns([{**BUSY, "payload_wall_s": 16.0, "payload_run_queue_s": 3.0}]).seconds
    assert parts[TimePart.RUN_QUEUE] == pytest.approx(3.0)
    assert parts[TimePart.START] == pytest.approx(0.5)
    assert parts[TimePart.OTHER] == pytest.approx(2.5)


def test_loop_that_does_not_measure_its_waits_for_a_cpu_has_a_part_of_the_payloads() -> None:
    row = {**BUSY, **QUEUED, "pass_loop_run_queue_s": None}
    diagnosis = diagnose_efficiency([row, row])
    assert diagnosis is not None
    assert diagnosis.cause is Cause.CPU_SHORTAGE


@pytest.mark.parametrize(
    "queue", [{"pass_loop_run_queue_s": [4.0, 4.0]}, {"payload_run_queue_s": 9.0}]
)
def test_waits_of_further_threads_do_not_contradict_the_efficiency(queue: dict[str, Any]) -> None:
    breakdown = sum_breakdowns([{**BUSY, **queue}])
    assert breakdown.efficiency == 1.0
    assert breakdown.share(TimePart.RUN_QUEUE) == 0.0


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
    parts = sum_breakdowns([row]).seconds
    whole = row["payload_wall_s"] + sum(row[n] or 0.0 for n in ("setup_wall_s", "stagein_wall_s"))
    assert min(parts.values()) >= -1e-6
    assert sum(parts.values()) == pytest.approx(whole, abs=1e-5)


def test_servers_are_named_by_door_with_their_upgrades() -> None:
    hour_us = 3_600_000_000
    served = [("stable", "v5.5.3", 1), ("testing", "v6.2.0", 3), ("testing", "v5.8.1", 2)]
    rows = [
        {**BUSY, "job_id": "j", "door": door, "server_version": version, "started_us": n * hour_us}
        for door, version, n in served
    ]
    diagnosis = diagnose_efficiency(rows)
    assert diagnosis is not None
    assert diagnosis.evidence[-1] == (
        "Storage servers: door stable: v5.5.3; "
        "door testing: v5.8.1, then v6.2.0 from 1970-01-01 03:00 UTC on."
    )


FAST: dict[str, Any] = {
    "plausible": True,
    "run_mode": "solo",
    "payload_wall_s": 11.0,
    "payload_user_s": 10.5,
    "payload_sys_s": 0.0,
    "pass_loop_wall_s": [10.0],
    "pass_loop_user_s": [10.0],
    "pass_loop_sys_s": [0.0],
    "pass_loop_run_queue_s": [0.0],
    "passes_done": 1,
}
#: 19 of 30 s in the run queue.
STARVED = {
    **FAST,
    "payload_wall_s": 30.0,
    "pass_loop_wall_s": [29.0],
    "pass_loop_run_queue_s": [19.0],
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("explain")
    result = config.load_settings({"data_dir": folder}, environ={}, folder=folder)
    with Store.open(result.database) as store:
        store.add(
            [
                make_measurement("fast1", site="SITE_A", **FAST),
                make_measurement("fast2", site="SITE_B", **FAST),
                make_measurement("slow1", site="SITE_C", **STARVED),
                make_measurement("slow2", site="SITE_C", **STARVED, campaign_id="other"),
                make_measurement(
                    "failed",
                    site="SITE_C",
                    **{**STARVED, "payload_wall_s": 900.0},
                    failure_class="read",
                ),
                make_measurement("paired", site="SITE_D", **{**FAST, "run_mode": "paired"}),
            ]
        )
        store.add_campaign(make_campaign_row("0123abcd4567", name="read@0123 2026-11-01"), [])
        store.add([make_measurement("named", site="SITE_A", campaign_id="0123abcd4567", **FAST)])
    return result


explain = partial(call_command, "explain")


def test_site_is_explained_beside_other_sites(settings: Settings) -> None:
    assert explain(settings, "--campaign", "all").output.startswith("SITE_A, SITE_B, SITE_C ")
    printed = explain(settings, "--site", "SITE_C", "--campaign", "all").output.splitlines()
    assert printed[0] == "SITE_C waits for CPU, not for data: 38 of 60 s in the run queue."
    assert printed[1] == "CPU time is 35 % of the wall time of 2 measurements of 2 jobs."
    [queue] = [line.split() for line in printed if line.startswith("run queue")]
    assert queue[-6:] == ["38.0", "63", "%", "38.0", "0", "%"]
    assert printed[-1].startswith(
        "Next: treehammer summary --campaign all --by site,host --metrics eff_job,"
    )


def test_job_is_found_by_the_beginning_of_its_identity(settings: Settings) -> None:
    shares = {
        line["part"]: line["share"]
        for line in json.loads(explain(settings, "fast1", "--json").output)
    }
    assert shares["deserialization and the loop"] == pytest.approx(10 / 11)
    assert explain(settings, "fast1").output.startswith(
        "Job fast1 is busy, not waiting: 10 of 11 s"
    )
    with pytest.raises(ConfigError, match="the beginning of 2 jobs"):
        explain(settings, "fast")


def test_latest_days_of_a_site_are_the_default(settings: Settings) -> None:
    with pytest.raises(NothingToDoError, match=r"no timed .*\n.* treehammer status"):
        explain(settings, "--site", "SITE_C")
    assert "2 measurements" in explain(settings, "--site", "SITE_C", "--days", "36500").output


@pytest.mark.parametrize(
    ("words", "error", "message", "hint"),
    [
        (["--site", "site_c"], NothingToDoError, "there is no site 'site_c'", "SITE_C"),
        (["nope"], NothingToDoError, "no measurement is of a job 'nope'", "--by job_id"),
        (["0123abcd"], ConfigError, "is a campaign, not a job", "explain --campaign 0123abcd"),
        (["paired"], NothingToDoError, "all were paired", "solo"),
    ],
)
def test_mistyped_names_are_explained(
    settings: Settings, words: list[str], error: type[Exception], message: str, hint: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        explain(settings, *words)
    assert hint in str(caught.value)


def test_names_of_campaigns_are_quoted_in_the_next_command(settings: Settings) -> None:
    printed = explain(settings, "--campaign", "read@0123 2026-11-01").output
    assert "Next: treehammer summary --campaign 'read@0123 2026-11-01' --by" in printed


def test_job_excludes_other_selections(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="excludes"):
        explain(settings, "fast1", "--site", "SITE_A")


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
        ({"perfstats_unzip_s": 1.96}, TimePart.DECOMPRESSION, "CPU bound: 98 % decompression"),
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


@pytest.mark.parametrize("slow_pass", [0, 2])
def test_bottleneck_is_that_of_the_pass_whose_efficiency_is_shown(slow_pass: int) -> None:
    walls = [2.0] * 4
    walls[slow_pass] = 30.0
    rates = ReadRates.from_row(
        {
            **ROW,
            "passes_counted": 3,
            "pass_loop_wall_s": walls,
            "pass_loop_user_s": [1.5] * 4,
            "pass_loop_sys_s": [0.5] * 4,
            "pass_loop_run_queue_s": [wall - 2.0 for wall in walls],
        }
    )
    assert rates.cpu_efficiency == 1.0
    assert rates.describe_bottleneck().startswith("CPU bound: 60 % deserialization")
