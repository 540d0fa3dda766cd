"""Checks of a record: validation of single values, and plausibility rules for a measurement.

A value of the wrong type, range, length or choice is refused.  An implausible measurement is stored but
never averaged.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..job_spec import TIMED, count_threads
from ..json_documents import decode_json
from .metric_catalogue import CATALOGUE, INT64_LIMIT, PASS_PHASES, Metric

Check = Callable[[Any], str]


def is_variant(text: str) -> bool:
    """Check that a text is the JSON object of a variant's axes and their values."""
    try:
        axes = decode_json(text)
    except ValueError:
        return False
    return isinstance(axes, dict) and all(
        is_storable(axis)
        and (
            is_storable(value)
            if isinstance(value, str)
            else isinstance(value, bool) or is_number(value)
        )
        for axis, value in axes.items()
    )


def is_storable(text: str) -> bool:
    """Check that databases can hold a text: it contains neither NUL nor a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def is_number(value: Any) -> bool:
    """Check that ``value`` is a finite number that fits a column; a bool is not one."""
    return (isinstance(value, float) and isfinite(value)) or _is_int(value)


def _is_int(value: Any) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -INT64_LIMIT <= value < INT64_LIMIT
    )


def make_check(metric: Metric) -> Check:
    """Build the validator of a metric's values; it describes a violation."""
    check = _CHECK_MAKERS[metric.type](metric)
    if metric.name == "variant":
        return lambda value: check(value) or _check_variant(value)
    if not metric.choices:
        return check
    choices = metric.choices
    alternatives = ", ".join(map(str, filter(None, choices)))
    reason = f"must be one of {alternatives}" if len(choices) > 1 else f"must be {alternatives}"
    return lambda value: check(value) or ("" if value in choices else reason)


def _make_text_check(metric: Metric) -> Check:
    limit, may_be_empty = metric.max_length, not metric.is_identity

    def check(value: Any) -> str:
        if not isinstance(value, str):
            return "must be text"
        if not is_storable(value):
            return "must not contain NUL or lone surrogates"
        if len(value) > limit:
            return f"is longer than {limit} characters"
        return "" if value or may_be_empty else "must not be empty"

    return check


def _make_int_check(metric: Metric) -> Check:
    low, high = metric.minimum, metric.maximum

    def check(value: Any) -> str:
        if not _is_int(value):
            return "must be a 64-bit whole number"
        return "" if low <= value <= high else f"must be {_describe_range(metric)}"

    return check


def _make_list_check(metric: Metric) -> Check:
    """Build the validator of a list whose items have the metric's range."""
    is_item = _is_int if metric.type == "ints" else is_number
    low = metric.minimum if metric.minimum > -INT64_LIMIT else None

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return "must be a list"
        if not all(map(is_item, value)):
            return "must hold finite numbers only"
        if low is not None and min(value, default=low) < low:
            return f"must hold numbers of {_describe_range(metric)} only"
        return ""

    return check


def _check_float(value: Any) -> str:
    return "" if is_number(value) else "must be a finite number"


def _check_bool(value: Any) -> str:
    return "" if isinstance(value, bool) else "must be true or false"


def _check_variant(text: str) -> str:
    if is_variant(text):
        return ""
    return (
        "must be a JSON object of texts (without NUL or lone surrogates), true, false and numbers "
        "(whole ones within 64 bits)"
    )


def _describe_range(metric: Metric) -> str:
    if metric.maximum == INT64_LIMIT - 1:
        return f"at least {metric.minimum}"
    return f"between {metric.minimum} and {metric.maximum}"


_CHECK_MAKERS: Dict[str, Callable[[Metric], Check]] = {
    "int": _make_int_check,
    "float": lambda _: _check_float,
    "text": _make_text_check,
    "bool": lambda _: _check_bool,
    "ints": _make_list_check,
    "floats": _make_list_check,
}


# --- Plausibility
#
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
    small branches in small files are.
    """
    if values.get("kind") != TIMED:
        return ""
    names = ["events_read", "loop_unzipped_bytes"]
    if values.get("selected_zip_bytes") != 0:
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
    """Check that the kernel returned all bytes that ROOT read from a local file."""
    numbers = _get_numbers(values, "kernel_read_chars", "bytes_read")
    if not numbers or values.get("address_family") != "local":
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


#: All rules in the order of their evaluation.
RULES: Tuple[Rule, ...] = (
    check_ranges,
    check_order,
    check_efficiency_bound,
    check_something_read,
    check_within_totals,
    check_baskets_read,
    check_kernel_bytes,
    check_phase_cpu,
    check_phase_wall,
    check_pass_times,
    check_event_rate,
    check_cold_start,
    check_cold_fetch,
)
