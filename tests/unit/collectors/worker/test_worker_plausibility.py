"""Each rule catches what cannot be true and lets pass what can."""

from __future__ import annotations

from typing import Any

import pytest

from treehammer.collectors.record import value_checks
from treehammer.collectors.record.metric_catalogue import CATALOGUE

#: A measurement as a quiet machine gives it.
GOOD: dict[str, Any] = {
    "kind": "timed",
    "axis_cache": "warm",
    "cores_allowed": 2,
    "payload_wall_s": 10.0,
    "payload_user_s": 8.0,
    "payload_sys_s": 1.0,
    "eff_payload": 0.9,
    "eff_job": 0.85,
    "eff_loop": 0.95,
    "import_wall_s": 1.0,
    "import_user_s": 0.8,
    "import_sys_s": 0.2,
    "passes_done": 3,
    "passes_counted": 2,
    "loop_wall_s": 2.0,
    "pass_loop_wall_s": [2.5, 1.9, 2.1],
    "pass_loop_user_s": [2.0, 1.8, 1.9],
    "pass_loop_sys_s": [0.2, 0.1, 0.1],
    "events_total": 1000,
    "events_read": 1000,
    "branches_total": 50,
    "branches_selected": 50,
    "selected_zip_bytes": 1_000_000,
    "bytes_read": 1_010_000,
    "loop_unzipped_bytes": 4_000_000,
    "kernel_read_chars": 1_010_000,
    "address_family": "local",
    "wall_per_event_s": 0.002,
    "event_rate_hz": 500.0,
    "client_cached_fraction": 1.0,
}

#: The same, large and cold: all that was read came from a device.
COLD: dict[str, Any] = {
    "axis_cache": "cold",
    "client_cache_state": "evicted",
    "client_cached_fraction": 0.0,
    "selected_zip_bytes": 10_000_000,
    "bytes_read": 10_000_000,
    "bytes_read_extra": 0,
    "kernel_read_chars": 10_000_000,
    "kernel_read_bytes": 10_000_000,
}


def test_good_measurement_breaks_no_rule() -> None:
    assert value_checks.find_implausibilities(GOOD) == []


def test_baskets_inside_the_tree_itself_leave_nothing_to_fetch() -> None:
    """ROOT keeps the baskets of small branches in the tree's header, read before the loop."""
    nothing = {"bytes_read": 0, "selected_zip_bytes": 0, "kernel_read_chars": 0}
    assert value_checks.find_implausibilities({**GOOD, **nothing}) == []


def test_every_measured_number_has_a_range() -> None:
    for metric in CATALOGUE:
        is_number = metric.type not in ("text", "bool")
        assert (metric.plausible_range is not None) == (is_number and metric.owner != "plan"), (
            metric
        )


def test_no_figures_no_verdict() -> None:
    assert value_checks.find_implausibilities({"kind": "timed"}) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"payload_wall_s": -1.0}, value_checks.check_ranges),
        ({"pass_loop_sys_s": [0.1, -0.1, 0.1]}, value_checks.check_ranges),
        ({"cpu_per_event_s": -9.2e18}, value_checks.check_ranges),
        ({"cpu_per_event_s": 9.2e18}, value_checks.check_ranges),
        ({"bytes_read": -1}, value_checks.check_ranges),
        ({"segment_cpu_log_ratio": -60.0}, value_checks.check_ranges),
        ({"read_latency_hist": [1, -2]}, value_checks.check_ranges),
        ({"started_us": 8, "ended_us": 7}, value_checks.check_order),
        ({"eff_loop": 2.2}, value_checks.check_efficiency_bound),
        ({"eff_job": 2.2}, value_checks.check_efficiency_bound),
        ({"eff_loop": 0.6, "variant": '{"threads":4}'}, value_checks.check_efficiency_bound),
        ({"cores_allowed": 1, "eff_payload": 1.4}, value_checks.check_efficiency_bound),
        ({"events_read": 0}, value_checks.check_something_read),
        ({"bytes_read": 0}, value_checks.check_something_read),
        ({"loop_unzipped_bytes": 0}, value_checks.check_something_read),
        ({"events_read": 1001}, value_checks.check_within_totals),
        ({"branches_selected": 51}, value_checks.check_within_totals),
        ({"bytes_read": 900_000}, value_checks.check_baskets_read),
        ({"kernel_read_chars": 500_000}, value_checks.check_kernel_bytes),
        ({"pass_loop_user_s": [5.0, 5.0, 5.0]}, value_checks.check_phase_cpu),
        ({"import_user_s": 9.0}, value_checks.check_phase_cpu),
        ({"pass_loop_wall_s": [12.0, 2.0, 2.0]}, value_checks.check_phase_wall),
        ({"passes_done": 2}, value_checks.check_pass_times),
        ({"passes_counted": 4}, value_checks.check_pass_times),
        ({"loop_wall_s": 1.0}, value_checks.check_pass_times),
        ({"event_rate_hz": 600.0}, value_checks.check_event_rate),
        ({"axis_cache": "cold"}, value_checks.check_cold_start),
        ({**COLD, "kernel_read_bytes": 0}, value_checks.check_cold_fetch),
        ({**COLD, "kernel_read_bytes": 3_900_000}, value_checks.check_cold_fetch),
    ],
)
def test_rule(change: dict[str, Any], rule: value_checks.Rule) -> None:
    values = {**GOOD, **change}
    assert rule(GOOD) == ""
    said = rule(values)
    assert said
    assert said in value_checks.find_implausibilities(values)


@pytest.mark.parametrize(
    "change",
    [
        # Half of the events need not fetch every basket.
        {"events_read": 500, "bytes_read": 600_000, "kernel_read_chars": 600_000},
        # A file behind a door is not read with read().
        {"kernel_read_chars": 0, "address_family": "IPv4"},
        # A checksum execution times nothing.
        {"kind": "checksum", "events_read": 0, "bytes_read": 0},
        # The clock tick is coarser than a very short loop.
        {"eff_loop": 3.0, "loop_wall_s": 0.01, "pass_loop_wall_s": [0.01, 0.01, 0.01]},
        {"axis_cache": "cold", "client_cached_fraction": 0.0},
        COLD,
        # Where eviction could not be proved, nothing is known of what comes from a device.
        {**COLD, "client_cache_state": "unknown", "kernel_read_bytes": 0},
        # Opening a small file fetches all of it ahead of the loop.
        {**COLD, "selected_zip_bytes": 900_000, "bytes_read": 900_000, "kernel_read_bytes": 0},
        # A cache that is too small reads the same bytes again, then from memory.
        {**COLD, "bytes_read": 40_000_000, "kernel_read_chars": 40_000_000},
    ],
)
def test_what_can_be_true_passes(change: dict[str, Any]) -> None:
    assert value_checks.find_implausibilities({**GOOD, **change}) == []


def test_every_rule_is_listed_and_says_what_it_is_about() -> None:
    rules = {item for name, item in vars(value_checks).items() if name.startswith("check_")}
    assert rules == set(value_checks.RULES)
    assert all(rule.__doc__ for rule in value_checks.RULES)
