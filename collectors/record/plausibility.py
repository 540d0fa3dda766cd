"""Plausibility of a measurement: rules that values of one execution must satisfy together.

An implausible measurement is stored but never averaged.
"""

from __future__ import annotations

import json
from typing import Any, Callable, List, Mapping, Optional, Tuple

from ..job_spec import TIMED, count_threads
from .metric_catalogue import CATALOGUE, PASS_PHASES

# Each rule takes the catalogue values of one measurement and returns a description of the violation,
# or ''.  A rule passes if its metrics are missing, because payloads may report little.

Values = Mapping[str, Any]
Rule = Callable[[Values], str]

#: Relative and absolute tolerance between two clocks or accounts of the same quantity.
RELATIVE_SLACK = 0.02
ABSOLUTE_SLACK_S = 0.05
#: Tolerance of byte counts: the tree's own header may contain baskets of its branches.
BYTE_SLACK = 0.05
#: Share of the file that may be cached in a cold execution.
MAX_COLD_CACHED = 0.1
#: Share of the bytes that a cold execution must fetch from a device; opening may fetch the rest.
MIN_COLD_FETCHED = 0.5
COLD_SLACK_BYTES = 1_000_000
#: Separator of reasons.
SEPARATOR = "; "

#: Name, smallest and largest plausible value of each metric that has a range.
_RANGES: Tuple[Tuple[str, float, float], ...] = tuple(
    (metric.name, *metric.plausible_range)
    for metric in CATALOGUE
    if metric.plausible_range is not None
)


def find_implausibilities(values: Values) -> List[str]:
    """List the violated rules of a measurement, one sentence each; empty if it is plausible."""
    return [violation for rule in RULES if (violation := rule(values))]


def _get_numbers(values: Values, *names: str) -> Optional[Tuple[float, ...]]:
    """Return these values, or None if one of them is missing."""
    numbers = [values.get(name) for name in names]
    return (
        None if None in numbers else tuple(float(value) for value in numbers if value is not None)
    )


def _exceeds(value: float, bound: float) -> bool:
    return value > bound * (1 + RELATIVE_SLACK) + ABSOLUTE_SLACK_S


def _sum_payload_seconds(values: Values, clocks: Tuple[str, ...]) -> float:
    """Sum the seconds that the payload reports for loading ROOT and every phase of every pass."""
    total = 0.0
    for clock in clocks:
        total += values.get(f"import_{clock}_s") or 0.0
        for phase in PASS_PHASES:
            total += sum(values.get(f"pass_{phase}_{clock}_s") or ())
    return total


def check_ranges(values: Values) -> str:
    """Check that times, counts, sizes, rates and ratios are within their metrics' ranges."""
    wrong = []
    for name, low, high in _RANGES:
        value = values.get(name)
        if value is None:
            continue
        minimum, maximum = (
            (min(value), max(value)) if isinstance(value, list) and value else (value, value)
        )
        if value != [] and not low <= minimum <= maximum <= high:
            worst = minimum if minimum < low else maximum
            wrong.append(f"{name} is {worst:.6g}, possible are {low:g} to {high:g}")
    return "; ".join(wrong)


def check_order(values: Values) -> str:
    """Check that an execution ended after its start."""
    numbers = _get_numbers(values, "started_us", "ended_us")
    return "it ended before it started" if numbers and numbers[1] < numbers[0] else ""


def check_efficiency_bound(values: Values) -> str:
    """Check that CPU time does not exceed wall time times the cores available to the job."""
    pairs = (
        ("eff_loop", "loop_wall_s"),
        ("eff_payload", "payload_wall_s"),
        ("eff_job", "payload_wall_s"),
        ("eff_access", "loop_wall_s"),
    )
    threads = count_threads(str(values.get("kind")), json.loads(values.get("variant") or "{}"))
    for name, wall in pairs:
        numbers = _get_numbers(values, name, wall, "cores_allowed")
        if numbers and _exceeds(threads * numbers[0] * numbers[1], numbers[2] * numbers[1]):
            return f"{name} is {numbers[0]:.3g} with {threads} threads on {numbers[2]:.0f} cores"
    return ""


def check_something_read(values: Values) -> str:
    """Check that a timed execution read events and bytes.

    Zero bytes are valid if all selected baskets are inside the tree's own header, as those of
    small branches in small files are, and of a command, which may read nothing.
    """
    if values.get("kind") != TIMED:
        return ""
    names = ["events_read", "loop_unzipped_bytes"]
    if values.get("selected_zip_bytes") != 0 and "file_reads" not in values:
        names.append("bytes_read")
    wrong = [name for name in names if values.get(name) == 0]
    return f"zero: {', '.join(wrong)}" if wrong else ""


def check_within_totals(values: Values) -> str:
    """Check that no more events or branches were read than the tree has."""
    for part, whole in (("events_read", "events_total"), ("branches_selected", "branches_total")):
        numbers = _get_numbers(values, part, whole)
        if numbers and numbers[0] > numbers[1]:
            return f"{part} is {numbers[0]:.0f} of {numbers[1]:.0f}"
    return ""


def check_baskets_read(values: Values) -> str:
    """Check that a full read fetched all baskets; every pass opens the file again."""
    numbers = _get_numbers(
        values, "bytes_read", "selected_zip_bytes", "events_read", "events_total"
    )
    if not numbers or values.get("kind") != TIMED:
        return ""
    read, selected, events, total = numbers
    if events == total and read < selected * (1 - BYTE_SLACK):
        return f"bytes_read is {read:.0f}, the selected branches hold {selected:.0f}"
    return ""


def check_kernel_bytes(values: Values) -> str:
    """Check that the kernel counted all bytes that ROOT, but no command, read from a local file."""
    numbers = _get_numbers(values, "kernel_read_chars", "bytes_read")
    if not numbers or values.get("address_family") != "local" or "file_reads" in values:
        return ""
    if numbers[0] < numbers[1] * (1 - BYTE_SLACK):
        return f"ROOT read {numbers[1]:.0f} bytes, the kernel handed out {numbers[0]:.0f}"
    return ""


def check_phase_cpu(values: Values) -> str:
    """Check that the phases of all passes used no more CPU than the whole process tree."""
    outside = _get_numbers(values, "payload_user_s", "payload_sys_s")
    inside = _sum_payload_seconds(values, ("user", "sys"))
    if outside and _exceeds(inside, sum(outside)):
        return f"the payload's phases used {inside:.3f} s of CPU, its process tree {sum(outside):.3f} s"
    return ""


def check_phase_wall(values: Values) -> str:
    """Check that the phases of all passes took no longer than the payload."""
    outside = _get_numbers(values, "payload_wall_s")
    inside = _sum_payload_seconds(values, ("wall",))
    if outside and _exceeds(inside, outside[0]):
        return f"the payload's phases took {inside:.3f} s, the payload {outside[0]:.3f} s"
    return ""


def check_pass_times(values: Values) -> str:
    """Check for one loop time per completed pass, and a median within their range."""
    walls = values.get("pass_loop_wall_s")
    pass_count = values.get("passes_done")
    if walls is not None and pass_count is not None and len(walls) != pass_count:
        return f"{len(walls)} loop times for {pass_count} passes"
    counts = _get_numbers(values, "passes_counted", "passes_done")
    if counts and counts[0] > counts[1]:
        return f"{counts[0]:.0f} of {counts[1]:.0f} passes counted"
    median = values.get("loop_wall_s")
    if walls and median is not None and not min(walls) <= median <= max(walls):
        return f"loop_wall_s is {median:.6g}, outside its passes"
    return ""


def check_event_rate(values: Values) -> str:
    """Check that the event rate is the inverse of the wall time per event."""
    numbers = _get_numbers(values, "event_rate_hz", "wall_per_event_s")
    if numbers and abs(numbers[0] * numbers[1] - 1) > RELATIVE_SLACK:
        return f"event_rate_hz is {numbers[0]:.6g}, 1 / wall_per_event_s is not"
    return ""


def check_cold_start(values: Values) -> str:
    """Check that a cold execution started with its file outside of the node's page cache."""
    fraction = values.get("client_cached_fraction")
    if values.get("axis_cache") == "cold" and fraction is not None and fraction > MAX_COLD_CACHED:
        return f"cold was requested, but {100 * fraction:.0f} % of the file was cached"
    return ""


def check_cold_fetch(values: Values) -> str:
    """Check that a cold execution fetched its bytes from a device rather than from the cache."""
    names = ("kernel_read_bytes", "bytes_read", "bytes_read_extra", "selected_zip_bytes")
    numbers = _get_numbers(values, *names)
    cold = values.get("axis_cache") == "cold" and values.get("client_cache_state") == "evicted"
    if not cold or not numbers:
        return ""
    fetched, requested, gaps, selected = numbers
    read = min(requested + gaps, selected)  # repeated reads may come from the cache
    if fetched + COLD_SLACK_BYTES < MIN_COLD_FETCHED * read:
        return (
            f"cold was requested, but of {read:.0f} bytes only {fetched:.0f} came from a device: "
            "another process read the file meanwhile"
        )
    return ""


#: All rules in the order of their evaluation, which is that of this module.
RULES: Tuple[Rule, ...] = tuple(
    rule for name, rule in globals().items() if name.startswith("check_")
)
