"""Diagnosis of CPU efficiency: the main cause of lost time, its evidence and the next step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from treehammer.analysis.descriptive.time_breakdown import (
    BREAKDOWN_COLUMNS,
    TimeBreakdown,
    TimePart,
    sum_breakdowns,
)
from treehammer.collectors.job_spec import PAIRED, TIMED
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.tables import TableColumn
from treehammer.text_formatting import format_share, pluralize

Row = Mapping[str, Any]

#: CPU efficiency from which executions count as busy: they lose no time worth a diagnosis.
BUSY_EFFICIENCY = 0.9
#: Share of the file outside the page cache from which reads of a local file count as cold.
COLD_SHARE = 0.5
#: Share of the waiting that round trips must explain for reads to count as bound by latency.
LATENCY_SHARE = 0.5
#: Share of the loop's CPU time from which decompression counts as its main part.
UNZIP_SHARE = 0.5
#: Share of the wall time from which executions count as mostly start-up.
START_SHARE = 0.5

#: Columns of the evidence, beside those of the breakdown.
DIAGNOSIS_COLUMNS = (
    "job_id",
    "kind",
    *OUTCOME_COLUMNS,
    *BREAKDOWN_COLUMNS,
    "stagein_bytes",
    "bytes_read",
    "bytes_read_extra",
    "read_calls",
    "passes_done",
    "door_rtt_s",
    "address_family",
    "client_cached_fraction",
    "cores_allowed",
    "load1_start",
    "cgroup_cpu_limit",
    "cpu_steal_s",
    "door",
    "server_version",
    "started_us",
    "threads_mean",
    "threads_idle",
)


#: Columns of :meth:`.TimeBreakdown.list_parts`.
PART_COLUMNS = (
    TableColumn("part", "part of the wall time"),
    TableColumn("wall_s", "s", "{:,.1f}".format, is_number=True),
    TableColumn("share", "share", format_share, is_number=True),
    TableColumn("without_cpu_s", "without CPU, s", "{:,.1f}".format, is_number=True),
)


class Cause(StrEnum):
    """Main cause of the wall time of executions."""

    CPU_SHORTAGE = "CPU shortage"
    CPU_LIMIT = "CPU limit"
    LATENCY = "latency of reads"
    SLOW_READS = "slow reads"
    COLD_CACHE = "cold cache"
    STAGE_IN = "stage-in"
    SETUP = "software set-up"
    OPEN = "open"
    START = "start of ROOT"
    LOADING = "slow loading of ROOT"
    DECOMPRESSION = "decompression"
    DESERIALIZATION = "deserialization"
    OTHER = "unknown"


@dataclass(frozen=True)
class EfficiencyDiagnosis:
    """Answer to "why is the CPU efficiency low?".

    Attributes:
        cause: main cause.
        sentence: the answer in one sentence, without the subject's name.
        evidence: further sentences with the numbers behind it.
        breakdown: of all executions.
        jobs: number of jobs.
        next_metrics: metrics to look at next, for ``summary --metrics``.
        next_by: columns to group these by.
    """

    cause: Cause
    sentence: str
    evidence: Sequence[str]
    breakdown: TimeBreakdown
    jobs: int
    next_by: Sequence[str]
    next_metrics: Sequence[str]

    def describe(self, subject: str) -> list[str]:
        """Answer in full sentences: the cause, the share of CPU time, then the evidence."""
        measurements = pluralize(self.breakdown.executions, "measurement")
        return [
            f"{subject} {self.sentence}.",
            f"CPU time is {format_share(self.breakdown.efficiency)} of the wall time of "
            f"{measurements} of {pluralize(self.jobs, 'job')}.",
            *self.evidence,
        ]


def select_usable(rows: Iterable[Row]) -> list[Row]:
    """Select the rows that may be averaged: timed, not failed and plausible."""
    return [row for row in rows if row["kind"] == TIMED and classify_outcome(row) is Outcome.GOOD]


def select_solo(rows: Iterable[Row]) -> list[Row]:
    """Select the usable rows in solo mode; paired executions waited for each other's turns."""
    rows = select_usable(rows)
    return [r for r in rows if r["run_mode"] != PAIRED and r["payload_wall_s"] is not None]


def diagnose_efficiency(rows: Iterable[Row]) -> EfficiencyDiagnosis | None:
    """Find the main cause of the wall time of executions; None without good ones in solo mode."""
    rows = select_solo(rows)
    breakdown = sum_breakdowns(rows)
    if not breakdown.wall_s:
        return None
    cause = _find_cause(breakdown, rows)
    rule = _RULES[cause]
    return EfficiencyDiagnosis(
        cause,
        rule.describe(breakdown),
        [text for find in (*rule.evidence, _describe_servers) if (text := find(breakdown, rows))],
        breakdown,
        len({row["job_id"] for row in rows}),
        rule.next_by,
        rule.next_metrics,
    )


# The cause


def _find_cause(breakdown: TimeBreakdown, rows: Sequence[Row]) -> Cause:
    if breakdown.efficiency >= BUSY_EFFICIENCY:
        if breakdown.share(TimePart.START) > START_SHARE:
            return Cause.START
        cpu = [breakdown.seconds[p] for p in (TimePart.DECOMPRESSION, TimePart.DESERIALIZATION)]
        return Cause.DECOMPRESSION if cpu[0] > UNZIP_SHARE * sum(cpu) else Cause.DESERIALIZATION
    part = max(_WAITING_CAUSES, key=breakdown.waited)
    if part is TimePart.START and breakdown.waited(part) < breakdown.seconds[part] / 2:
        return Cause.START  # mostly work, not waiting
    return _find_read_cause(breakdown, rows) if part is TimePart.READS else _WAITING_CAUSES[part]


def _find_read_cause(breakdown: TimeBreakdown, rows: Sequence[Row]) -> Cause:
    """Find the cause of waiting for reads."""
    cached = _median(rows, "client_cached_fraction")
    local = {row["address_family"] for row in rows} <= {"local", None, ""}
    if local and cached is not None and cached < 1 - COLD_SHARE:
        return Cause.COLD_CACHE
    # Seconds of read calls if each waits for one round trip.
    trips = sum(
        row["read_calls"] * row["door_rtt_s"] * row["passes_done"]
        for row in rows
        if None not in (row["read_calls"], row["door_rtt_s"], row["passes_done"])
    )
    is_bound = trips > LATENCY_SHARE * breakdown.seconds[TimePart.READS]
    return Cause.LATENCY if is_bound else Cause.SLOW_READS


#: Part in which most time without CPU was spent -> the cause that it stands for.
_WAITING_CAUSES = {
    TimePart.RUN_QUEUE: Cause.CPU_SHORTAGE,
    TimePart.THROTTLED: Cause.CPU_LIMIT,
    TimePart.READS: Cause.SLOW_READS,
    TimePart.STAGE_IN: Cause.STAGE_IN,
    TimePart.SETUP: Cause.SETUP,
    TimePart.OPEN: Cause.OPEN,
    TimePart.START: Cause.LOADING,
    TimePart.OTHER: Cause.OTHER,
}


def _median(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return float(statistics.median(values)) if values else None


# The words


@dataclass(frozen=True)
class _Rule:
    """Wording of a cause, and where to look next."""

    text: str
    part: TimePart
    evidence: Sequence[Callable[[TimeBreakdown, Sequence[Row]], str]]
    next_by: Sequence[str]
    next_metrics: Sequence[str]

    def describe(self, breakdown: TimeBreakdown) -> str:
        seconds, wall = breakdown.seconds[self.part], breakdown.wall_s
        return self.text.format(time=f"{_format_seconds(seconds)} of {_format_seconds(wall)} s")


def _format_seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _describe_load(_breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    load, cores = _median(rows, "load1_start"), _median(rows, "cores_allowed")
    if load is None or cores is None:
        return ""
    allowed = pluralize(round(cores), "core")
    return f"The node's load was {load:.1f} at the start (median); a job may use {allowed}."


def _describe_steal(_breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    stolen = sum(row["cpu_steal_s"] or 0.0 for row in rows)
    return f"The hypervisor took {_format_seconds(stolen)} s of CPU meanwhile." if stolen else ""


def _describe_cpu_limit(_breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    limit = _median(rows, "cgroup_cpu_limit")
    return f"The cgroup allows {limit:g} CPUs." if limit is not None else ""


def _describe_reads(breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    fetched = [
        ((row["bytes_read"] or 0) + (row["bytes_read_extra"] or 0)) * (row["passes_done"] or 0)
        for row in rows
    ]
    calls, rtt = _median(rows, "read_calls"), _median(rows, "door_rtt_s")
    waited = breakdown.seconds[TimePart.READS]
    text = f"{sum(fetched) / 1e6:,.0f} MB in {_format_seconds(waited)} s of waiting"
    if waited:
        text += f" ({sum(fetched) / 1e6 / waited:.0f} MB/s)"
    if calls is not None:
        text += f"; {calls:,.0f} read calls in a pass"
    if rtt is not None:
        text += f"; {1e3 * rtt:.1f} ms round trip"
    return f"{text}."


def _describe_cached(_breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    cached = _median(rows, "client_cached_fraction")
    if cached is None:
        return ""
    return f"{format_share(cached)} of the file was in the node's page cache at the start (median)."


def _describe_copy(breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    copied = sum(row["stagein_bytes"] or 0 for row in rows)
    seconds = breakdown.seconds[TimePart.STAGE_IN]
    return f"{copied / 1e6:.0f} MB were copied at {copied / 1e6 / seconds:.1f} MB/s."


def _describe_unzip(breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    if all(row["perfstats_unzip_s"] is row["ntuple_unzip_wall_s"] is None for row in rows):
        return "How much of it is decompression is not known."
    unzip = breakdown.seconds[TimePart.DECOMPRESSION]
    loop = unzip + breakdown.seconds[TimePart.DESERIALIZATION]
    if not loop:
        return ""
    return f"Decompression takes {format_share(unzip / loop)} of the loop's CPU time."


def _describe_threads(_breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    """Describe the threads of commands; those of other payloads are not recorded."""
    mean, idle = _median(rows, "threads_mean"), _median(rows, "threads_idle")
    if mean is None or idle is None:
        return ""
    return f"Of {mean:.1f} threads on average, {idle:.1f} did not run (median)."


def _describe_servers(_breakdown: TimeBreakdown, rows: Sequence[Row]) -> str:
    """Name the versions of the storage servers by door, with the start of each after the first."""
    first_us: dict[str, dict[str, int]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: row.get("started_us") or 0):
        if version := row.get("server_version"):
            first_us[row.get("door") or ""].setdefault(version, row.get("started_us") or 0)
    texts = []
    for door, versions in sorted(first_us.items()):
        first, *later = versions
        times = [datetime.fromtimestamp(versions[version] / 1e6, UTC) for version in later]
        since = [
            f"{version} from {time:%Y-%m-%d %H:%M} UTC on"
            for version, time in zip(later, times, strict=True)
        ]
        texts.append(", then ".join([f"door {door}: {first}", *since]))
    return f"Storage servers: {'; '.join(texts)}." if texts else ""


_RULES = {
    Cause.CPU_SHORTAGE: _Rule(
        "waits for CPU, not for data: {time} in the run queue",
        TimePart.RUN_QUEUE,
        (_describe_load, _describe_steal),
        ("host",),
        ("eff_job", "payload_run_queue_s", "load1_start", "cores_allowed"),
    ),
    Cause.CPU_LIMIT: _Rule(
        "waits for CPU, not for data: its CPU limit stopped it for {time}",
        TimePart.THROTTLED,
        (_describe_cpu_limit, _describe_load),
        ("host",),
        ("eff_job", "cgroup_throttled_s", "cgroup_cpu_limit"),
    ),
    Cause.LATENCY: _Rule(
        "waits for data, one round trip after another: {time}; a larger TTreeCache needs fewer",
        TimePart.READS,
        (_describe_reads,),
        ("door", "cache_mb"),
        ("eff_job", "read_calls", "door_rtt_s"),
    ),
    Cause.SLOW_READS: _Rule(
        "waits for data: {time} in reads",
        TimePart.READS,
        (_describe_reads, _describe_cached),
        ("door", "access"),
        ("eff_job", "perfstats_read_s", "door_rtt_s"),
    ),
    Cause.COLD_CACHE: _Rule(
        "waits for the node's disk: {time} in reads of a file outside the page cache",
        TimePart.READS,
        (_describe_cached, _describe_reads),
        ("host", "cache"),
        ("eff_job", "client_cached_fraction", "kernel_read_bytes"),
    ),
    Cause.STAGE_IN: _Rule(
        "waits for the copy of its files: {time} in stage-in",
        TimePart.STAGE_IN,
        (_describe_copy,),
        ("door", "access"),
        ("eff_job", "eff_payload", "stagein_wall_s", "stagein_bytes"),
    ),
    Cause.SETUP: _Rule(
        "waits for its software: {time} in setting it up",
        TimePart.SETUP,
        (),
        ("host", "root"),
        ("eff_job", "eff_payload", "setup_wall_s"),
    ),
    Cause.OPEN: _Rule(
        "waits for files to open: {time} in opening and reading metadata",
        TimePart.OPEN,
        (),
        ("door", "host"),
        ("eff_job", "open_wall_s", "get_tree_wall_s", "door_rtt_s"),
    ),
    Cause.START: _Rule(
        "spends {time} on loading ROOT and compiling the loop; read more to measure reading",
        TimePart.START,
        (),
        ("host", "root"),
        ("eff_job", "import_wall_s", "compile_wall_s"),
    ),
    Cause.LOADING: _Rule(
        "waits for its software: {time} in loading ROOT and compiling the loop",
        TimePart.START,
        (_describe_load,),
        ("host", "root"),
        ("eff_job", "import_wall_s", "compile_wall_s", "psi_io_some_s"),
    ),
    Cause.DECOMPRESSION: _Rule(
        "is busy, not waiting: {time} in decompression",
        TimePart.DECOMPRESSION,
        (_describe_unzip,),
        ("host", "root"),
        ("eff_job", "perfstats_unzip_s", "cpu_per_event_s", "calibration_before_s"),
    ),
    Cause.DESERIALIZATION: _Rule(
        "is busy, not waiting: {time} in the loop or the command itself",
        TimePart.DESERIALIZATION,
        (_describe_unzip,),
        ("host", "root"),
        ("eff_job", "cpu_per_event_s", "calibration_before_s"),
    ),
    Cause.OTHER: _Rule(
        "waits for something that is not recorded: {time} outside of every phase",
        TimePart.OTHER,
        (_describe_threads, _describe_load),
        ("host",),
        ("eff_job", "eff_payload", "eff_loop", "psi_io_some_s", "psi_memory_some_s"),
    ),
}
