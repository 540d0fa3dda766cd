"""Page of one job: attempts with nodes, measurements, logs and read latencies."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.comparison.verdict_text import format_milliseconds
from treehammer.analysis.descriptive.efficiency_diagnosis import DIAGNOSIS_COLUMNS
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.status.failure_explanation import explain_results, explain_slowness
from treehammer.collectors.job_spec import EXTERNAL_PREFIX, JobState
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.outcome import Outcome, classify_outcome, label_outcome
from treehammer.sql.core.evidence import FailureExplanation
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.read import campaign_queries, site_history
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_outcome
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.text_formatting import format_cell, format_size
from treehammer.web.addresses import link_to, link_to_same_page
from treehammer.web.core.responses import require_text
from treehammer.web.display_formats import (
    EfficiencyExplanation,
    day_from_number,
    explain_efficiency,
    format_day,
    format_seconds,
    format_time,
)
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels, label_variants, title_column
from treehammer.web.page_query import TIME_TABLE, PageOperation, PageQuery, PathText
from treehammer.web.page_service import PageContext, PageModule, PageView
from treehammer.web.pages.common_tables import variant_column
from treehammer.web.pages.latency_figure import BIN_COLUMNS, chart_histograms, list_filled_bins
from treehammer.web.pages.measurement_page import (
    FindFolders,
    find_output_folders,
    list_logs,
    send_log,
)

#: Parameter with the attempt and name of a whole log.
LOG = "log"
_PROVENANCE = (
    "repository",
    "ref",
    "commit_id",
    "dirty",
    "test_name",
    "test_path",
    "test_hash",
    "payload_hash",
    "dataset",
    "dataset_hash",
    "treehammer_version",
    "instrument_version",
)
_NODE_COLUMNS = (
    "host",
    "machine",
    "slot",
    "cpu_model",
    "cores_online",
    "cores_allowed",
    "cgroup_cpu_limit",
    "cgroup_memory_limit_bytes",
    "mem_total_bytes",
    "os_name",
    "kernel",
    "container",
    "worker_python",
)
_CIRCUMSTANCE_COLUMNS = (
    "load1_start",
    "load1_end",
    "mem_available_start_bytes",
    "cpu_steal_s",
    "psi_cpu_some_s",
    "psi_io_some_s",
    "psi_memory_some_s",
    "cgroup_throttled_s",
    "calibration_before_s",
    "calibration_after_s",
    "concurrent_door_jobs",
)
_STORAGE_COLUMNS = (
    "door_protocol",
    "file_url",
    "data_server",
    "address_family",
    "server_version",
    "door_rtt_s",
)
_MEASUREMENT_COLUMNS = (
    "measurement_id",
    "attempt",
    "round",
    "position",
    "kind",
    "variant",
    "variant_label",
    "root_version",
    "root_provider",
    "started_us",
    "cpu_per_event_s",
    "wall_per_event_s",
    "eff_job",
    "loop_wall_s",
    "bytes_read",
    "read_calls",
    "read_latency_p50_s",
    "read_latency_p99_s",
    "plausible",
    "implausible_reasons",
    "failure_class",
    "failure_kind",
    "failure_phase",
    "failure_message",
)
_COLUMNS = (
    *_MEASUREMENT_COLUMNS,
    *_PROVENANCE,
    *_NODE_COLUMNS,
    *_CIRCUMSTANCE_COLUMNS,
    *_STORAGE_COLUMNS,
    "series",
    "day",
    "site",
    "door",
    "axis_root",
    "read_latency_hist",
    "log_excerpt",
)


class JobQuery(PageQuery):
    """Parameters of the page."""

    job_id: PathText = Field(description="Identity.")


#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/jobs/{job_id}",
        "getJob",
        "job",
        "A job: its attempts and measurements",
        {
            "measurements": "measurements",
            "attempts": "attempts",
            "time": TIME_TABLE,
            "latencies": "reads by latency and release",
        },
        JobQuery,
        ("facts", "command_line", "explanation"),
    ),
)


@dataclass(frozen=True)
class ExecutionLog:
    """Output of one execution.

    Attributes:
        title: names the execution.
        end: its last characters.
        whole: title and address of each whole log on this machine.
    """

    title: str
    end: str
    whole: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class JobAttempt:
    """One execution of the job.

    Attributes:
        number: counts the executions from 1.
        row: the batch system's record, None if only measurements are known.
        node: facts on the node.
        storage: facts on the door and its server.
        circumstances: load and calibration during the attempt.
        table: measurements of the attempt.
        logs: outputs of the measurements that stored their ends.
    """

    number: int
    row: AttemptRow | None
    node: tuple[tuple[str, str], ...]
    storage: tuple[tuple[str, str], ...]
    circumstances: tuple[tuple[str, str], ...]
    table: DataTable
    logs: tuple[ExecutionLog, ...]


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page, and of the whole logs on this machine."""
    query = partial(_query_job, find_output_folders(context.settings))
    return [context.page_route(require_text("/jobs/{job_id}"), query, "job")]


PAGES = PageModule(routes, position=52, operations=OPERATIONS)


def _query_job(find_folders: FindFolders, store: Store, request: Request) -> PageView | Response:
    """Collect the data of the page, or send a whole log.

    Raises:
        NothingToDoError: the job or the log does not exist.
    """
    job = campaign_queries.fetch_job(store, JobQuery.parse(request).job_id)
    folders = find_folders(job)
    if log_name := request.query_params.get(LOG):
        return send_log(folders, log_name)
    return _view_job(store, request, job, folders)


def _view_job(store: Store, request: Request, job: JobRow, folders: Mapping[int, Path]) -> PageView:
    campaign = campaign_queries.fetch_campaign(store, job.campaign_id)
    rows = campaign_queries.fetch_job_measurements(store, job, _COLUMNS)
    recorded = {attempt.number: attempt for attempt in store.attempts([job.id])}
    measured: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        measured[row["attempt"]].append(row)
    numbers = sorted({*recorded, *measured})
    variants = label_variants((row[VARIANT_COLUMN] for row in rows), hide_release=True)
    attempts = [
        _build_attempt(
            number, recorded.get(number), measured[number], variants, folders.get(number)
        )
        for number in numbers
    ]
    measurements = _measurement_table("measurements", "All measurements of the job", rows, variants)
    explanation = _explain_job(store, job)
    reads = _sum_reads(rows)
    latencies = chart_histograms(reads)
    bins = _latency_table(reads)
    values = {
        "explanation": explanation.sentences,
        "trouble": _explain_trouble(store, job, campaign, recorded.values(), rows),
        "time": explanation.table,
        "job": job,
        "campaign": campaign,
        "is_finished": JobState(job.state).is_final,
        "attempts": attempts,
        "latencies": latencies,
        "bins": bins,
        "facts": list(_provenance_facts(job, campaign, rows)),
        "links": list(_related_links(store, job, rows)),
        "truncated": len(rows) == campaign_queries.MAX_JOB_MEASUREMENTS,
        "command_line": campaign_outcome.rerun_command(campaign),
    }
    title = f"{job.label or job.kind} at {job.site}"
    # The table of all measurements covers every attempt; a single one is sent on request only.
    requested = request.query_params.get("table")
    requested_tables = [attempt.table for attempt in attempts if attempt.table.name == requested]
    return PageView(
        "job.html.j2",
        title,
        values,
        (
            measurements,
            _attempt_table(recorded.values()),
            explanation.table,
            bins,
            *requested_tables,
        ),
        charts={"latencies": latencies} if latencies else {},
    )


def _explain_trouble(
    store: Store,
    job: JobRow,
    campaign: CampaignRow,
    attempts: Iterable[AttemptRow],
    rows: Sequence[Row],
) -> FailureExplanation | None:
    """Explain the job's failure, or that its site was slow on that day; None for neither."""
    bad_us = [
        attempt.ended_us or attempt.started_us for attempt in attempts if attempt.failure_class
    ]
    outcomes = (Outcome.FAILED, Outcome.IMPLAUSIBLE)
    bad_us += [row["started_us"] for row in rows if classify_outcome(row) in outcomes]
    if bad_us:
        return explain_results(store, job.site, max(bad_us), campaign.test_name)
    if not rows:
        return None
    day = Period.of_day(max(row["started_us"] for row in rows))
    return explain_slowness(store, job.site, day)


def _explain_job(store: Store, job: JobRow) -> EfficiencyExplanation:
    selection = Selection.parse((job.campaign_id,), [f"job_id={job.id}"])
    with store.snapshot() as snapshot:
        return explain_efficiency(
            "The job", list(snapshot.measurements(selection, DIAGNOSIS_COLUMNS))
        )


def _related_links(store: Store, job: JobRow, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Link to the job's site, days and comparable measurements, each with a title."""
    yield job.site, link_to("site", site=job.site)
    for number in sorted({row["day"] for row in rows}):
        day = day_from_number(number)
        title = f"{job.site} on {format_day(day)}"
        yield title, link_to("day", day=day, query={"site": job.site})
    timed = [row for row in rows if row["kind"] == "timed"]
    if not timed:
        return
    tests, variants, doors = (
        sorted({row[name] for row in timed if row[name]})
        for name in ("test_name", VARIANT_COLUMN, "door")
    )
    common = {"metric": "cpu_per_event_s", "color": "axis_root", "test_name": tests}
    for title, site, parameters in (
        (
            "The same work at all sites of the campaign",
            None,
            {"by": "site", "campaign": job.campaign_id},
        ),
        (
            "The same work at this site by day",
            job.site,
            {"by": "day", "site": job.site, "door": doors},
        ),
    ):
        recorded_variants = site_history.list_recorded_variants(store, variants, site)
        query = {**common, VARIANT_COLUMN: recorded_variants, **parameters}
        yield title, link_to("explore", query=query)


def _build_attempt(
    number: int,
    row: AttemptRow | None,
    measured: Sequence[Row],
    variants: VariantLabels,
    folder: Path | None,
) -> JobAttempt:
    name = f"attempt_{number}"
    return JobAttempt(
        number,
        row,
        tuple(_shared_values(measured, _NODE_COLUMNS)),
        tuple(_shared_values(measured, _STORAGE_COLUMNS)),
        tuple(_shared_values(measured, _CIRCUMSTANCE_COLUMNS)),
        _measurement_table(name, f"Measurements of attempt {number}", measured, variants),
        tuple(
            ExecutionLog(
                _measurement_title(measurement, variants),
                measurement["log_excerpt"],
                tuple(_link_to_logs(measurement, folder)),
            )
            for measurement in measured
            if measurement["log_excerpt"]
        ),
    )


def _link_to_logs(row: Row, folder: Path | None) -> Iterator[tuple[str, str]]:
    for name, size in list_logs(folder, row["round"], row["position"]):
        address = link_to_same_page(**{LOG: f"{row['attempt']}/{name}"})
        yield f"{name} ({format_size(size)})", address


def _measurement_title(row: Row, variants: VariantLabels) -> str:
    release = f" with ROOT {row['axis_root']}" if row["axis_root"] else ""
    title = f"round {row['round']}, position {row['position']}: {variants.label(row[VARIANT_COLUMN])}{release}"
    return f"{title} – {row['failure_class']}" if row["failure_class"] else title


def _shared_values(rows: Sequence[Row], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Summarize known facts: the shared value, the range of numbers, or all texts."""
    for name in names:
        values = [row[name] for row in rows if row[name] not in (None, "")]
        if not values:
            continue
        title = title_column(name)
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1 and all(isinstance(value, int | float) for value in distinct):
            yield (
                title,
                f"{_format_value(name, min(distinct))} … {_format_value(name, max(distinct))}",
            )
        else:
            yield title, ", ".join(_format_value(name, value) for value in distinct)


def _format_value(name: str, value: Any) -> str:
    if isinstance(value, float) and METRICS_BY_NAME[name].unit == "s":
        return format_seconds(value)
    return format_size(value) if name.endswith("_bytes") else format_cell(value)


def _measurement_table(
    name: str, caption: str, rows: Sequence[Row], variants: VariantLabels
) -> DataTable:
    counterparts = _find_others(rows, variants)
    columns = (
        variant_column(variants),
        TableColumn("variant_label", hidden=True),
        TableColumn("measurement_id", hidden=True),
        TableColumn("attempt", hidden=True),
        TableColumn("axis_root", "ROOT"),
        TableColumn("root_version", "ROOT version", hidden=not any(map(_release_differs, rows))),
        TableColumn("kind", "kind"),
        TableColumn("round", "round", is_number=True),
        TableColumn("position", "position", is_number=True),
        TableColumn(
            "outcome",
            "outcome",
            css_class=lambda row: "" if row["outcome"] == Outcome.GOOD else "slower",
        ),
        TableColumn("why", "reason", is_long=True, hidden=not any(map(_failure_reason, rows))),
        TableColumn("all", "details", link=lambda row: _link_to_values(row["measurement_id"])),
        TableColumn(
            "differences",
            "differences",
            link=lambda row: (
                row["other_id"] and _link_to_values(row["measurement_id"], row["other_id"])
            ),
            hidden=not any(counterparts.values()),
        ),
        TableColumn("other_id", hidden=True),
        TableColumn("cpu_per_event_s", "CPU, ms/event", format_milliseconds, is_number=True),
        TableColumn("wall_per_event_s", "wall, ms/event", format_milliseconds, is_number=True),
        TableColumn("loop_wall_s", "loop, s", is_number=True),
        TableColumn("eff_job", title_column("eff_job"), is_number=True),
        TableColumn("bytes_read", "read", format_size, is_number=True),
        TableColumn("read_calls", "read calls", is_number=True),
        TableColumn("read_latency_p50_s", "read p50, ms", format_milliseconds, is_number=True),
        TableColumn("read_latency_p99_s", "read p99, ms", format_milliseconds, is_number=True),
        TableColumn("started_us", "started", format_time),
    )
    filled = [
        {
            **row,
            "outcome": label_outcome(row),
            "why": _failure_reason(row),
            "all": "all values",
            "differences": f"from {other['axis_root']}" if other else "",
            "other_id": other["measurement_id"] if other else "",
        }
        for row in rows
        for other in [counterparts[row["measurement_id"]]]
    ]
    empty_text = "This attempt left no measurements."
    return DataTable(name, caption, columns, filled, empty_text=empty_text, note=variants.note)


def _release_differs(row: Row) -> bool:
    """Return whether ROOT reported another version than the requested release."""
    return row["root_version"] not in (None, "", row["axis_root"])


def _find_others(rows: Sequence[Row], variants: VariantLabels) -> dict[str, Row | None]:
    """Find for each measurement that of the same work and round with the first release."""
    first: dict[tuple[Any, ...], Row] = {}
    counterparts: dict[str, Row | None] = {}
    for row in sorted(
        rows, key=lambda measurement: natural_sort_key(measurement["axis_root"] or "")
    ):
        work = (row["attempt"], row["round"], row["kind"], variants.label(row[VARIANT_COLUMN]))
        other = first.setdefault(work, row)
        counterparts[row["measurement_id"]] = (
            other if other["axis_root"] != row["axis_root"] else None
        )
    return counterparts


def _link_to_values(id_: str, other: str = "") -> str:
    """Link to the page of a measurement, beside another one if there is one."""
    query = {"with": other} if other else None
    return link_to("measurement-page", measurement_id=id_, query=query)


def _failure_reason(row: Row) -> str:
    if row["failure_class"]:
        parts = (row["failure_kind"], row["failure_phase"], row["failure_message"])
        return ": ".join(part for part in parts if part)
    return row["implausible_reasons"] or ""


def _sum_reads(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Sum the reads of good measurements by release and bin of latency."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        bins = row["read_latency_hist"]
        if bins and classify_outcome(row) is Outcome.GOOD:
            release = row["root_version"] or ""
            counts = sums.get(release, [])
            sums[release] = [a + b for a, b in zip_longest(counts, bins, fillvalue=0)]
    return dict(sorted(sums.items(), key=lambda item: natural_sort_key(item[0])))


def _latency_table(reads_by_release: Mapping[str, Sequence[int]]) -> DataTable:
    rows = [
        {"root_version": release, **bin_}
        for release, bins in reads_by_release.items()
        for bin_ in list_filled_bins(bins)
    ]
    columns = (TableColumn("root_version", "ROOT"), *BIN_COLUMNS)
    return DataTable("latencies", "Reads by latency", columns, rows)


def _provenance_facts(
    job: JobRow, campaign: CampaignRow, rows: Sequence[Row]
) -> Iterator[tuple[str, str]]:
    """Return the origin of the job and provenance of its measurements."""
    yield "job", job.id
    yield "batch system", f"{job.batch_system.removeprefix(EXTERNAL_PREFIX)} {job.batch_id}".strip()
    template = json.loads(campaign.plan).get("templates", {}).get(job.site)
    if template:
        yield "template", template
    if not rows:
        yield "repository", campaign.repository
        yield "commit", campaign.commit_id
        yield "test", campaign.test_path
    yield from _shared_values(rows, _PROVENANCE)


def _attempt_table(attempts: Any) -> DataTable:
    names = ("number", "state", "started_us", "ended_us", "exit_code", "failure_class", "message")
    rows = [{name: getattr(attempt, name) for name in names} for attempt in attempts]
    return DataTable("attempts", "Attempts", tuple(TableColumn(name, name) for name in names), rows)
