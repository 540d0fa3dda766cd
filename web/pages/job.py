"""One job: every attempt with its node, what it measured, its logs and read latencies."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich.filesize import decimal
from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis import wording
from treehammer.sql import campaigns, site_history
from treehammer.sql.rollups import GOOD, IMPLAUSIBLE
from treehammer.sql.rows import ELSEWHERE, AttemptRow, CampaignRow, JobRow
from treehammer.sql.store import Store
from treehammer.submit import again
from treehammer.submit.batch.base import JobState
from treehammer.web.addresses import some_text
from treehammer.web.pages import days
from treehammer.web.pages.columns import variant_column
from treehammer.web.pages.context import PageContext, View, link_to
from treehammer.web.pages.histogram import Histogram, histograms
from treehammer.web.pages.tables import Column, Row, Table
from treehammer.web.pages.variants import VARIANT, Variants, told_apart
from treehammer.web.templating import cell, moment

_EXACT = (
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
_NODE = (
    "host",
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
_CIRCUMSTANCES = (
    "load1_start",
    "load1_end",
    "mem_available_start_bytes",
    "steal_s",
    "psi_cpu_some_s",
    "psi_io_some_s",
    "psi_memory_some_s",
    "cgroup_throttled_s",
    "calibration_before_s",
    "calibration_after_s",
    "same_door_jobs",
)
_STORAGE = (
    "door_protocol",
    "file_url",
    "data_server",
    "address_family",
    "server_version",
    "door_rtt_s",
)
_MEASURED = (
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
    "implausible_why",
    "failure_class",
    "failure_kind",
    "failure_phase",
    "failure_message",
)
_COLUMNS = (
    *_MEASURED,
    *_EXACT,
    *_NODE,
    *_CIRCUMSTANCES,
    *_STORAGE,
    "series",
    "day",
    "site",
    "door",
    "axis_root",
    "read_latency_hist",
    "log_excerpt",
)


@dataclass(frozen=True)
class Attempt:
    """One execution of the job.

    ``row`` is what its batch system told, None where only its measurements are known.  ``facts`` are
    of its node and door: those that all its measurements share, else the range.
    """

    number: int
    row: AttemptRow | None
    node: tuple[tuple[str, str], ...]
    storage: tuple[tuple[str, str], ...]
    circumstances: tuple[tuple[str, str], ...]
    table: Table
    logs: tuple[tuple[str, str], ...]


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the page."""
    return [context.page(some_text("/jobs/{job_id}"), view, "job")]


def view(store: Store, request: Request) -> View:
    """What the page shows."""
    job = campaigns.job_named(store, request.path_params["job_id"])
    campaign = campaigns.named(store, job.campaign_id)
    rows = campaigns.of_job(store, job, _COLUMNS)
    told = {attempt.number: attempt for attempt in store.attempts([job.id])}
    measured: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        measured[row["attempt"]].append(row)
    numbers = sorted({*told, *measured})
    variants = told_apart((row[VARIANT] for row in rows), release_told=True)
    attempts = [
        _attempt(number, told.get(number), measured[number], variants, request)
        for number in numbers
    ]
    every = _table("measurements", "All measurements of the job", rows, variants, request)
    values = {
        "job": job,
        "campaign": campaign,
        "over": JobState(job.state).final,
        "attempts": attempts,
        "histograms": _histograms(rows),
        "facts": list(_facts(job, campaign, rows)),
        "further": list(_further(store, job, rows, request)),
        "cut": len(rows) == campaigns.MOST_OF_JOB,
        "command_line": again.command(campaign),
    }
    title = f"{job.label or job.kind} at {job.site}"
    # All together have them already: that of one attempt is for those who name it.
    named = request.query_params.get("table")
    own = [attempt.table for attempt in attempts if attempt.table.name == named]
    return View("job.html.j2", title, values, (every, _attempt_table(told.values()), *own))


def _further(
    store: Store, job: JobRow, rows: Sequence[Row], request: Request
) -> Iterator[tuple[str, str]]:
    """Where the job's site and its work are looked at: what is read there, and its address."""
    yield job.site, link_to(request, "site", site=job.site)
    for number in sorted({row["day"] for row in rows}):
        day = days.of_number(number)
        title = f"{job.site} on {days.written(day)}"
        yield title, link_to(request, "day", day=day, query={"site": job.site})
    timed = [row for row in rows if row["kind"] == "timed"]
    if not timed:
        return
    tests, variants, doors = (
        sorted({row[name] for row in timed if row[name]}) for name in ("test_name", VARIANT, "door")
    )
    asked = {"metric": "cpu_per_event_s", "colour": "axis_root", "test_name": tests}
    for title, where, more in (
        (
            "The same at all sites of the campaign",
            None,
            {"by": "site", "campaign": job.campaign_id},
        ),
        ("The same here by day", job.site, {"by": "day", "site": job.site, "door": doors}),
    ):
        of_any_release = site_history.recorded(store, variants, where)
        query = {**asked, VARIANT: of_any_release, **more}
        yield title, link_to(request, "explore", query=query)


def _attempt(
    number: int,
    row: AttemptRow | None,
    measured: Sequence[Row],
    variants: Variants,
    request: Request,
) -> Attempt:
    name = f"attempt_{number}"
    return Attempt(
        number,
        row,
        tuple(_shared(measured, _NODE)),
        tuple(_shared(measured, _STORAGE)),
        tuple(_shared(measured, _CIRCUMSTANCES)),
        _table(name, f"Measurements of attempt {number}", measured, variants, request),
        tuple(
            (_title(one, variants), one["log_excerpt"]) for one in measured if one["log_excerpt"]
        ),
    )


def _title(row: Row, variants: Variants) -> str:
    release = f" with ROOT {row['axis_root']}" if row["axis_root"] else ""
    what = (
        f"round {row['round']}, position {row['position']}: {variants.name(row[VARIANT])}{release}"
    )
    return f"{what} – {row['failure_class']}" if row["failure_class"] else what


def _shared(rows: Sequence[Row], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is known: a value that all share, the range of numbers, or every text."""
    for name in names:
        values = [row[name] for row in rows if row[name] not in (None, "")]
        if not values:
            continue
        title = name.replace("_", " ")
        if name.endswith("_bytes"):
            title = title.removesuffix(" bytes")
        elif name.endswith("_s"):
            title = f"{title.removesuffix(' s')} (s)"
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1 and all(isinstance(value, int | float) for value in distinct):
            yield title, f"{_written(name, min(distinct))} … {_written(name, max(distinct))}"
        else:
            yield title, ", ".join(_written(name, value) for value in distinct)


def _written(name: str, value: Any) -> str:
    return decimal(value) if name.endswith("_bytes") else cell(value)


def _table(
    name: str, caption: str, rows: Sequence[Row], variants: Variants, request: Request
) -> Table:
    columns = (
        variant_column(variants),
        Column("variant_label", hidden=True),
        Column("measurement_id", hidden=True),
        Column("attempt", hidden=True),
        Column("axis_root", "ROOT"),
        Column("root_version", "version of ROOT", hidden=not any(map(_told_otherwise, rows))),
        Column("kind", "kind"),
        Column("round", "round", number=True),
        Column("position", "position", number=True),
        Column("outcome", "outcome", look=lambda row: "" if row["outcome"] == GOOD else "slower"),
        Column("why", "why", long=True, hidden=not any(map(_why, rows))),
        Column("all", "everything", link=lambda row: _record(request, row["measurement_id"])),
        Column("cpu_per_event_s", "CPU, ms/event", _ms, number=True),
        Column("wall_per_event_s", "wall, ms/event", _ms, number=True),
        Column("loop_wall_s", "loop, s", number=True),
        Column("eff_job", "eff_job", number=True),
        Column("bytes_read", "read", lambda n: "–" if n is None else decimal(n), number=True),
        Column("read_calls", "read calls", number=True),
        Column("read_latency_p50_s", "read p50, ms", _ms, number=True),
        Column("read_latency_p99_s", "read p99, ms", _ms, number=True),
        Column("started_us", "started", moment),
    )
    filled = [{**row, "outcome": _outcome(row), "why": _why(row), "all": "JSON"} for row in rows]
    empty = "It left no measurement."
    return Table(name, caption, columns, filled, empty=empty, note=variants.note)


def _told_otherwise(row: Row) -> bool:
    """Whether ROOT told another version than the release that was asked for."""
    return row["root_version"] not in (None, "", row["axis_root"])


def _record(request: Request, id_: str) -> str:
    return link_to(request, "measurement", measurement_id=id_)


def _ms(value: float | None) -> str:
    return "–" if value is None else wording.milliseconds(value)


def _outcome(row: Row) -> str:
    return row["failure_class"] or (GOOD if row["plausible"] else IMPLAUSIBLE)


def _why(row: Row) -> str:
    if row["failure_class"]:
        parts = (row["failure_kind"], row["failure_phase"], row["failure_message"])
        return ": ".join(part for part in parts if part)
    return row["implausible_why"] or ""


def _histograms(rows: Sequence[Row]) -> list[Histogram]:
    """Read latencies by release, of what came back whole and can be true."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        bins = row["read_latency_hist"]
        if bins and _outcome(row) == GOOD:
            title = f"ROOT {row['root_version']}" if row["root_version"] else "All reads"
            before = sums.get(title, [])
            sums[title] = [a + b for a, b in zip_longest(before, bins, fillvalue=0)]
    return histograms(dict(sorted(sums.items())))


def _facts(job: JobRow, campaign: CampaignRow, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """What exactly ran."""
    yield "job", job.id
    yield "batch system", f"{job.batch_system.removeprefix(ELSEWHERE)} {job.batch_id}".strip()
    template = json.loads(campaign.plan).get("templates", {}).get(job.site)
    if template:
        yield "template", template
    if not rows:
        yield "repository", campaign.repository
        yield "commit", campaign.commit_id
        yield "test", campaign.test_path
    yield from _shared(rows, _EXACT)


def _attempt_table(attempts: Any) -> Table:
    names = ("number", "state", "started_us", "ended_us", "exit_code", "failure_class", "message")
    rows = [{name: getattr(attempt, name) for name in names} for attempt in attempts]
    return Table("attempts", "Attempts", tuple(Column(name, name) for name in names), rows)
