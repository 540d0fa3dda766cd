"""Figures of a load from its rows of operations.

Only the steps in which the generator was not the limit enter them.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ....collectors.record.latency_histograms import QUANTILES, LatencyHistogram
from ....collectors.record.operation_steps import DELETE, MAIN_OPERATIONS

Row = Mapping[str, Any]

_ROUND_TRIPS = 5
_CONNECT_TIMEOUT_S = 2.0


def summarize_rows(rows: Sequence[Row], seconds: Optional[float] = None) -> Dict[str, float]:
    """Summarize the main operation of a load: writes, deletions or reads, else opens, else stats.

    Steps in which the generator was the limit are counted and otherwise left out; if all were,
    neither rates nor latencies remain.  ``seconds`` is the time of the others, by default their sum.
    """
    selected_rows = _choose_rows(rows)
    scheduled = sum(row["scheduled"] for row in selected_rows)
    figures = {
        "limited_steps": float(len(_find_limited(selected_rows))),
        "late_share": sum(row["late"] for row in selected_rows) / max(scheduled, 1),
        **_summarize_rates(selected_rows, seconds),
    }
    histogram = merge_latencies(_select_counted(selected_rows))
    if histogram.count:
        figures["latency_mean_s"] = histogram.mean
        figures.update({f"latency_{name}": histogram.quantile(n) for name, n in QUANTILES.items()})
    return figures


def summarize_loop(
    rows: Sequence[Row],
    spans: Mapping[str, Tuple[float, float]],
    step_s: float,
    *,
    by_server: bool = False,
) -> Dict[str, float]:
    """Summarize a closed loop, in which as many operations are due as are done.

    The total time and bytes are of all steps; the time is left out after a failure.  Rates are of
    the time from the first instant to the last end, without steps that are left out.

    Args:
        rows: operations.
        spans: operation -> first instant and last end, in seconds from the start of step 0.
        step_s: length of a step.
        by_server: add the slowest and fastest server's rate.
    """
    selected_rows = _choose_rows(rows)
    if not selected_rows:
        return summarize_rows(rows, 0.0)
    span = spans[selected_rows[0]["operation"]]
    seconds = _count_busy_seconds(span, step_s, _find_limited(selected_rows))
    figures = summarize_rows(rows, seconds)
    figures.pop("attempted_hz", None)
    figures["total_mb"] = sum(row["bytes"] for row in selected_rows) / 1e6
    if not sum(row["failed"] for row in rows):
        figures["total_s"] = span[1] - span[0]
    counted_rows = _select_counted(selected_rows)
    histogram = merge_latencies(counted_rows)
    if histogram.count:
        figures["latency_deviation_s"] = histogram.standard_deviation
    if by_server and counted_rows:
        figures.update(_summarize_servers(counted_rows, seconds))
    return figures


def _count_busy_seconds(
    span: Tuple[float, float], step_s: float, limited: Collection[int]
) -> float:
    """Count the seconds of a span outside the steps in which the generator was the limit."""
    first_s, last_s = span
    left_out = sum(
        max(0.0, min(last_s, (step + 1) * step_s) - max(first_s, step * step_s)) for step in limited
    )
    return max(last_s - first_s - left_out, 1e-6)


def _count_seconds(rows: Sequence[Row]) -> float:
    """Count the seconds of steps and of late answers, without the share of steps that are left out.

    Where answers came late, they came in any steps: then it is the share of the answers.
    """
    steps = [row for row in rows if row["clients"]]
    counted_s, steps_s, all_s = (
        sum({row["step"]: row["step_s"] for row in group}.values())
        for group in (_select_counted(steps), steps, rows)
    )
    counted, done = (sum(row["done"] for row in group) for group in (_select_counted(rows), rows))
    share = counted / done if counted and all_s > steps_s else counted_s / (steps_s or 1.0)
    return float(share * all_s)


#: Quantiles of each call, and of the slowest operations, by the end of their figures' names.
CALL_QUANTILES, FAR_TAILS = {"p50": 0.5, "p99": 0.99}, {"p999": 0.999}


def summarize_calls(
    rows: Sequence[Row], names: Sequence[str], quantiles: Mapping[str, float] = CALL_QUANTILES
) -> Dict[str, float]:
    """Summarize each of several operations: ``NAME_p50_s`` and ``NAME_p99_s``, or other quantiles."""
    figures: Dict[str, float] = {}
    for name in names:
        named_rows = [row for row in _select_counted(rows) if row["operation"] == name]
        histogram = merge_latencies(named_rows)
        if histogram.count:
            for title, fraction in quantiles.items():
                figures[f"{name}_{title}_s"] = histogram.quantile(fraction)
    return figures


def summarize_transfers(rows: Sequence[Row], calls: Sequence[str]) -> Dict[str, float]:
    """Summarize transfers without data: each call, failures of all, and deletions as their rate."""
    figures = {**summarize_calls(rows, calls), "limited_steps": float(len(_find_limited(rows)))}
    deletions = [row for row in rows if row["operation"] == DELETE]
    for name, group in (("achieved_hz", deletions), ("failed_share", rows)):
        rates = _summarize_rates(group)
        if name in rates:
            figures[name] = rates[name]
    return figures


def _choose_rows(rows: Sequence[Row]) -> List[Row]:
    names = {row["operation"] for row in rows}
    name = next((name for name in MAIN_OPERATIONS if name in names), "")
    return [row for row in rows if row["operation"] == name]


def _select_counted(rows: Sequence[Row]) -> List[Row]:
    return [row for row in rows if not row["generator_limited"]]


def _find_limited(rows: Sequence[Row]) -> Set[int]:
    return {row["step"] for row in rows if row["generator_limited"] and row["clients"]}


def merge_latencies(rows: Sequence[Row]) -> LatencyHistogram:
    """Merge the latencies of rows."""
    return LatencyHistogram.sum(
        LatencyHistogram.decode(row["latency"]) for row in rows if row["latency"]
    )


def _summarize_servers(rows: Sequence[Row], seconds: float) -> Dict[str, float]:
    """Compare servers; failures without a known server count for none."""
    moved: Dict[str, int] = {}
    for row in rows:
        moved[row["server"]] = moved.get(row["server"], 0) + row["bytes"]
    rates = [size / seconds / 1e6 for server, size in moved.items() if server]
    if not rates:
        return {}
    return {
        "servers": float(len(rates)),
        "server_mb_per_s_min": min(rates),
        "server_mb_per_s_max": max(rates),
    }


def _summarize_rates(all_rows: Sequence[Row], seconds: Optional[float] = None) -> Dict[str, float]:
    rows = _select_counted(all_rows)
    scheduled, completed = (sum(row[name] for row in rows) for name in ("scheduled", "done"))
    if not scheduled:  # all began in steps that are left out
        return {}
    seconds = _count_seconds(all_rows) if seconds is None else seconds
    return {
        "attempted_hz": scheduled / _count_seconds([row for row in rows if row["clients"]]),
        "achieved_hz": completed / seconds,
        "achieved_mb_per_s": sum(row["bytes"] for row in rows) / seconds / 1e6,
        "failed_share": sum(row["failed"] for row in rows) / scheduled,
    }


def measure_round_trip(rows: Sequence[Row]) -> Dict[str, float]:
    """Measure the round trip to the server that was used most, as the shortest TCP connect."""
    used: Dict[str, int] = {}
    for row in rows:
        used[row["server"]] = used.get(row["server"], 0) + row["done"]
    server = max(used, key=lambda name: used[name], default="")
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        return {}
    try:
        address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        return {"round_trip_s": min(_time_connect(address) for _ in range(_ROUND_TRIPS))}
    except OSError:
        return {}


def _time_connect(address: Tuple[Any, ...]) -> float:
    with socket.socket(address[0], socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_TIMEOUT_S)
        start = time.monotonic()
        connection.connect(address[4])
        return time.monotonic() - start
