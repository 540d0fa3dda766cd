"""Page of one job: attempts with nodes, measurements, logs and read latencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from starlette.responses import Response

from treehammer.analysis.descriptive.efficiency_diagnosis import DIAGNOSIS_COLUMNS
from treehammer.analysis.statistics.metric_units import format_metric, head_unit
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.status.failure_explanation import explain_results, explain_slowness
from treehammer.collectors.job_spec import EXTERNAL_PREFIX, JobState
from treehammer.collectors.record.outcome import Outcome, classify_outcome, label_outcome
from treehammer.hctests.definition.model import format_commit
from treehammer.sql.core.measurement_columns import DIMENSIONS
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_outcome
from treehammer.tables import DataTable, Row, TableColumn, build_table, hidden_columns
from treehammer.text_formatting import format_cell, format_duration
from treehammer.web import display_formats
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to
from treehammer.web.columns import OUTCOME_COLUMNS, column, columns, hidden, variant_column
from treehammer.web.figure_links import list_figure_links
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels, label_variants, title_column
from treehammer.web.page import TIME_TABLE, PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery, PathText
from treehammer.web.pages.common_tables import count_messages, efficiency_section
from treehammer.web.pages.execution_logs import LOG, find_output_folders, send_log, show_outputs
from treehammer.web.pages.latency_figure import build_bin_table, draw_reads, sum_reads

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
_BY_DIMENSION = {dimension.name: dimension.columns for dimension in DIMENSIONS}
_NODE_COLUMNS = (*_BY_DIMENSION["node"], "slot")
_STORAGE_COLUMNS = ("door_protocol", *_BY_DIMENSION["storage"], "door_rtt_s", "origin_rtt_s")
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
#: Results shown in the table of measurements.
_RESULT_COLUMNS = (
    "loop_wall_s",
    "eff_job",
    "bytes_read",
    "read_calls",
    "read_latency_p50_s",
    "read_latency_p99_s",
    "started_us",
)
_COLUMNS = (
    *("measurement_id", "attempt", "round", "position", "kind", "variant", "variant_label"),
    *("root_version", "day", "door", "axis_root", "read_latency_hist", "log_excerpt"),
    *("cpu_per_event_s", "wall_per_event_s"),
    *_RESULT_COLUMNS,
    *OUTCOME_COLUMNS,
    *_PROVENANCE,
    *_NODE_COLUMNS,
    *_CIRCUMSTANCE_COLUMNS,
    *_STORAGE_COLUMNS,
)
_ATTEMPT_COLUMNS = tuple(
    TableColumn(name, name)
    for name in (
        *("number", "state", "started_us", "ended_us", "exit_code"),
        *("failure_class", "message"),
    )
)


class JobQuery(PageQuery):
    """Parameters of the page."""

    job_id: PathText = Field(description="Identity.")


@page(
    "/jobs/{job_id:some}",
    "job",
    JobQuery,
    position=52,
    is_crawled=False,
    api=PageOperation(
        "getJob",
        "A job: its attempts and measurements",
        {
            "measurements": "measurements",
            "attempts": "attempts",
            "time": TIME_TABLE,
            "latencies": "reads by latency and release",
        },
        ("facts", "command_line", "explanation"),
    ),
)
def job_page(request: PageRequest[JobQuery]) -> PageContent | Response:
    """Build the page, or send a whole log; an unknown job or log is refused."""
    store = request.store
    job = campaign_queries.find_job(store, request.query.job_id)
    folders = request.resources.share(find_output_folders)(job)
    if log_name := request.raw.query_params.get(LOG):
        return send_log(folders, log_name)
    campaign = campaign_queries.load_campaign(store, job.campaign_id)
    rows = campaign_queries.load_job_measurements(store, job, _COLUMNS)
    recorded = store.attempts([job.id])
    variants = label_variants((row[VARIANT_COLUMN] for row in rows), hide_release=True)
    work = campaign.plan.definition.work
    by_number = {attempt.number: attempt for attempt in recorded}
    numbers = sorted({*by_number, *(row["attempt"] for row in rows)})
    attempts = [
        _describe_attempt(
            number,
            by_number.get(number),
            rows,
            folders.get(number),
            variants,
            work,
            is_last=number == numbers[-1],
        )
        for number in numbers
    ]
    selection = Selection.parse((job.campaign_id,), [f"job_id={job.id}"])
    with store.snapshot() as snapshot:
        diagnosed = list(snapshot.measurements(selection, DIAGNOSIS_COLUMNS))
    explanation = display_formats.explain_efficiency("The job", diagnosed)
    reads = sum_reads(rows)
    bins = build_bin_table(reads)
    facts = list(_provenance_facts(job, campaign, rows))
    command = campaign_outcome.rerun_command(campaign)
    sections = (
        ui.headline(_explain_trouble(store, job, campaign, recorded, rows)),
        ui.quiet(
            f"{job.kind} job, repeat {job.repeat}, door {format_cell(job.door)} · ",
            ui.Styled(job.state, f"state {job.state}"),
        ),
        ui.Links(list(_related_links(store, job, rows))),
        *_describe_progress(job, campaign, has_started=bool(attempts)),
        _SHORTENED_NOTE if len(rows) >= campaign_queries.MAX_JOB_MEASUREMENTS else None,
        _count_repeated_messages(rows),
        *(section for section, _ in attempts),
        efficiency_section(explanation) if explanation.sentences else None,
        draw_reads(reads, bins),
        ui.Titled("Provenance", ui.Facts(facts), anchor="ran"),
        ui.Titled("Run again", _RERUN_NOTE, ui.Command(command), anchor="again"),
    )
    # The table of all measurements covers every attempt; a single one is sent on request only.
    requested = request.raw.query_params.get("table")
    tables = (
        build_measurement_table(
            "measurements", "All measurements of the job", rows, variants, work
        ),
        build_table("attempts", "Attempts", _ATTEMPT_COLUMNS, recorded),
        explanation.table,
        bins,
        *(table for _, table in attempts if table.name == requested),
    )
    return PageContent(
        f"{job.label or job.kind} at {job.site}",
        sections,
        tables,
        {"facts": dict(facts), "command_line": command, "explanation": explanation.sentences},
        [
            ui.Link("Campaigns", link_to("campaigns")),
            ui.Link(campaign.name or campaign.id, link_to("campaign", campaign_id=campaign.id)),
        ],
    )


_SHORTENED_NOTE = ui.Paragraph(
    "Not all measurements are shown; ", ui.Code("treehammer export"), " writes them all."
)
_RERUN_NOTE = ui.Paragraph(
    "This runs the whole campaign again; narrow ",
    ui.Code("--sites"),
    " and ",
    ui.Code("-P"),
    " as needed.",
)


def _describe_progress(
    job: JobRow, campaign: CampaignRow, *, has_started: bool
) -> Iterator[ui.Section]:
    """Say how current the state of an unfinished job is."""
    command = f"treehammer status {campaign.id} --follow"
    if not job.state:
        yield ui.quiet("Only measurements of this job were received, not its state.")
    elif JobState(job.state).is_final:
        if not has_started:
            yield ui.quiet("The job ended without a recorded start.")
    elif not has_started:
        yield from ui.suggest(
            "The job has not started yet. Its state is as of the last query of the batch system. Query "
            "again:",
            command,
        )
    else:
        text = "The state is as of the last query of the batch system; "
        yield ui.quiet(text, ui.Code(command), " updates it.")


def _count_repeated_messages(rows: Sequence[Row]) -> DataTable | None:
    """Count the messages of several bad measurements; None for fewer."""
    bad_rows = [row for row in rows if _failure_reason(row)]
    return count_messages(bad_rows) if len(bad_rows) > 1 else None


def _describe_attempt(
    number: int,
    row: AttemptRow | None,
    rows: Sequence[Row],
    folder: Path | None,
    variants: VariantLabels,
    work: str,
    *,
    is_last: bool,
) -> tuple[ui.Titled, DataTable]:
    """Show an attempt: its end, measurements, node, storage and logs; return its table, too.

    Args:
        rows: measurements of the job.
    """
    measured = [row for row in rows if row["attempt"] == number]
    table = build_measurement_table(
        f"attempt_{number}", f"Measurements of attempt {number}", measured, variants, work
    )
    titles = {"Node": _NODE_COLUMNS, "Load on the node": _CIRCUMSTANCE_COLUMNS}
    facts = {
        title: ui.Facts(list(_shared_values(measured, names)))
        for title, names in {**titles, "Storage": _STORAGE_COLUMNS}.items()
    }
    groups = [
        ui.Group("", ui.Titled(title, values, level=3))
        for title, values in facts.items()
        if values or title in titles
    ]
    section = ui.Titled(
        f"Attempt {number}",
        *_describe_end(row),
        table,
        ui.Group("columns", *groups) if facts["Node"] else None,
        ui.Titled(
            "Output",
            *show_outputs(measured, folder, variants),
            anchor="output" if is_last else f"output-{number}",
            level=3,
        )
        if measured
        else None,
        anchor=f"attempt-{number}",
    )
    return section, table


def _describe_end(row: AttemptRow | None) -> Iterator[ui.Section]:
    if row is None:
        yield ui.quiet("No report from the batch system yet.")
        return
    parts = [f", started {display_formats.format_time(row.started_us)}"] if row.started_us else []
    if row.started_us and row.ended_us:
        parts.append(f", took {format_duration((row.ended_us - row.started_us) / 1e6)}")
    if row.exit_code is not None:
        parts.append(f", exit code {row.exit_code}")
    yield ui.Paragraph(ui.Styled(row.state, f"state {row.state}"), *parts)
    if row.failure_class:
        message = f": {row.message}" if row.message else ""
        yield ui.Paragraph(ui.Styled(row.failure_class, "slower"), message)


def _explain_trouble(
    store: Store,
    job: JobRow,
    campaign: CampaignRow,
    attempts: Iterable[AttemptRow],
    rows: Sequence[Row],
) -> str:
    """Explain the job's failure, or that its site was slow on that day; '' for neither."""
    bad_us = [
        attempt.ended_us or attempt.started_us for attempt in attempts if attempt.failure_class
    ]
    outcomes = (Outcome.FAILED, Outcome.IMPLAUSIBLE)
    bad_us += [row["started_us"] for row in rows if classify_outcome(row) in outcomes]
    if bad_us:
        explanation = explain_results(store, job.site, max(bad_us), campaign.test_name)
    elif rows:
        day = Period.of_day(max(row["started_us"] for row in rows))
        explanation = explain_slowness(store, job.site, day)
    else:
        return ""
    return f"{explanation or ''}"


def _related_links(store: Store, job: JobRow, rows: Sequence[Row]) -> Iterator[ui.Link]:
    """Link to the job's site, days and comparable measurements."""
    yield ui.Link(job.site, link_to("site", site=job.site))
    for number in sorted({row["day"] for row in rows}):
        day = display_formats.day_from_number(number)
        yield ui.Link(f"{job.site} on {day}", link_to("day", day=day, query={"site": job.site}))
    timed = [row for row in rows if row["kind"] == "timed"]
    if not timed:
        return
    tests, variants, doors = (
        sorted({row[name] for row in timed if row[name]})
        for name in ("test_name", VARIANT_COLUMN, "door")
    )
    parameters = {"campaign": job.campaign_id, "site": job.site, "test_name": tests, "door": doors}
    yield from list_figure_links("job", store, {**parameters, VARIANT_COLUMN: variants})


def _shared_values(rows: Sequence[Row], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Summarize known facts: the shared value, the range of numbers, or all texts."""
    for name in names:
        values = [row[name] for row in rows if row[name] not in (None, "")]
        if not values:
            continue
        title = title_column(name)
        distinct = list(dict.fromkeys(values))
        separator = ", "
        if len(distinct) > 1 and all(isinstance(value, int | float) for value in distinct):
            distinct, separator = [min(distinct), max(distinct)], " … "
        yield title, separator.join(format_metric(name, value) for value in distinct)


def build_measurement_table(
    name: str, caption: str, rows: Sequence[Row], variants: VariantLabels, work: str
) -> DataTable:
    """Build the table of a job's measurements, each with its outcome and the one to compare with.

    Args:
        work: what times are per, ``event`` or ``run``.
    """
    counterparts = _find_counterparts(rows, variants)
    has_reason = any(map(_failure_reason, rows))
    # ROOT may report another version than the requested release.
    differs = any(row["root_version"] not in (None, "", row["axis_root"]) for row in rows)
    table_columns = (
        variant_column(variants),
        *hidden_columns("variant_label", "measurement_id", "attempt"),
        column("axis_root"),
        column("root_version", "ROOT version", hidden=not differs),
        column(
            "commit_id",
            "commit",
            format_value=format_commit,
            hidden=len({row["commit_id"] for row in rows}) < 2,
        ),
        *columns("kind", "round", "position"),
        column("outcome", css_class=lambda row: "" if row["outcome"] == Outcome.GOOD else "slower"),
        column("why", "reason", is_long=True, hidden=not has_reason),
        column("all", "details", link=lambda row: _link_to_values(row["measurement_id"])),
        column(
            "differences",
            link=lambda row: (
                row["other_id"] and _link_to_values(row["measurement_id"], row["other_id"])
            ),
            hidden=not any(other["other_id"] for other in counterparts.values()),
        ),
        hidden("other_id"),
        column("cpu_per_event_s", f"CPU, {head_unit('cpu_per_event_s', work=work)}"),
        column("wall_per_event_s", f"wall, {head_unit('wall_per_event_s', work=work)}"),
        *columns(*_RESULT_COLUMNS),
    )
    filled = [
        {
            **row,
            "outcome": label_outcome(row),
            "why": _failure_reason(row),
            "all": "all values",
            **counterparts[row["measurement_id"]],
        }
        for row in rows
    ]
    empty_text = "This attempt left no measurements."
    return DataTable(name, caption, table_columns, filled, empty_text, variants.note)


def _find_counterparts(rows: Sequence[Row], variants: VariantLabels) -> Mapping[str, Row]:
    """Find for each measurement that of the same work and round with the first release."""
    first: dict[tuple[Any, ...], Row] = {}
    counterparts: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: natural_sort_key(row["axis_root"] or "")):
        work = (row["attempt"], row["round"], row["kind"], variants.label(row[VARIANT_COLUMN]))
        other, names = first.setdefault(work, row), {"differences": "", "other_id": ""}
        if other["axis_root"] != row["axis_root"]:
            names = {
                "differences": f"from {other['axis_root']}",
                "other_id": other["measurement_id"],
            }
        counterparts[row["measurement_id"]] = names
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


def _provenance_facts(
    job: JobRow, campaign: CampaignRow, rows: Sequence[Row]
) -> Iterator[tuple[str, str]]:
    """Return the origin of the job and provenance of its measurements."""
    yield "job", job.id
    yield "batch system", f"{job.batch_system.removeprefix(EXTERNAL_PREFIX)} {job.batch_id}".strip()
    template = campaign.plan.templates.get(job.site)
    if template:
        yield "template", template
    if not rows:
        yield "repository", campaign.repository
        yield "commit", campaign.commit_id
        yield "test", campaign.test_path
    yield from _shared_values(rows, _PROVENANCE)
