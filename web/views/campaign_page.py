"""Page of one campaign: progress, failures, jobs, provenance and how to run it again."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.outcome import (
    BAD_OUTCOME_LABELS,
    UNSUPPORTED_LABELS,
    Outcome,
    label_outcome,
)
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_queries import JobSummary
from treehammer.sql.write.store import Store
from treehammer.submit.lifecycle import rerun
from treehammer.text_formatting import format_duration, pluralize
from treehammer.web.core.route_paths import require_text
from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.template_environment import format_time
from treehammer.web.display.variant_labels import VARIANT_COLUMN
from treehammer.web.views.shared.common_columns import format_counts, job_column
from treehammer.web.views.shared.page_context import (
    HTML,
    PageContext,
    PageView,
    link_to,
    requested_format,
)
from treehammer.web.views.shared.pagination import (
    count_pages,
    parse_page_number,
    past_last_page_text,
)

#: Jobs on one page of the list.
JOBS_PER_PAGE = 100
#: Known values listed for an unknown one.
_MAX_SUGGESTED = 20
#: Kinds of failure messages shown.
MAX_MESSAGES = 30
#: Seconds between two refreshes of a running campaign's progress.
REFRESH_INTERVAL_S = 5


@dataclass(frozen=True)
class CampaignProgress:
    """Progress of a campaign.

    Attributes:
        recorded: measurements in the database.
        planned: planned measurements.
        jobs: number of jobs by state.
        remaining_s: expected seconds to completion at the current pace, None if unknown.
        as_of_us: latest start or end of a job known from its batch system, None before the first.
    """

    recorded: int
    planned: int
    jobs: Mapping[str, int]
    remaining_s: float | None
    as_of_us: int | None

    @property
    def is_finished(self) -> bool:
        """Whether no further measurements are expected."""
        return all(JobState(state).is_final for state in self.jobs) or self.recorded >= self.planned

    @property
    def sentence(self) -> str:
        """Progress as a sentence."""
        states = ", ".join(
            f"{self.jobs[state.value]} {state.value}"
            for state in JobState
            if self.jobs.get(state.value)
        )
        text = f"{self.recorded} of {pluralize(self.planned, 'measurement')} recorded"
        if self.recorded > self.planned:
            text = (
                f"{pluralize(self.recorded, 'measurement')} recorded, {self.planned} planned "
                "(some jobs ran again)"
            )
        text += f"; jobs: {states or 'none'}"
        if self.remaining_s is not None and not self.is_finished:
            text += f"; about {format_duration(self.remaining_s)} remaining at the current pace"
        return f"{text}."

    @property
    def no_failures_text(self) -> str:
        """Sentence shown if there are no known failures."""
        if not self.is_finished:
            return "No failures so far."
        missing = self.planned - self.recorded
        if missing <= 0:
            return "No failures."
        planned = pluralize(self.planned, "planned measurement")
        text = f"No known failures, but {missing} of {planned} are missing"
        cancelled = self.jobs.get(JobState.CANCELLED.value, 0)
        if cancelled:
            text += (
                f": {pluralize(cancelled, 'job')} {'was' if cancelled == 1 else 'were'} cancelled"
            )
        return f"{text}."

    def as_dict(self) -> dict[str, Any]:
        """Progress as a dictionary, for JSON."""
        return {**vars(self), "over": self.is_finished}


def routes(context: PageContext) -> list[BaseRoute]:
    """Route of the page; ``?part=progress`` returns only the part that changes while jobs run."""
    return [context.page_route(require_text("/campaigns/{campaign_id}"), campaign_view, "campaign")]


def campaign_view(store: Store, request: Request) -> PageView:
    """Collect the data of the page.

    Raises:
        ConfigError: a filter of jobs has an unknown value.
        NothingToDoError: the campaign does not exist.
    """
    campaign = campaign_queries.fetch_campaign(store, request.path_params["campaign_id"])
    states = campaign_queries.count_job_states(store, campaign.id)
    counts = store.count_measurements(campaign.id)
    progress = _campaign_progress(store, campaign, states, sum(row.measurements for row in counts))
    sites = _site_table(campaign, states, counts, request)
    unsupported_counts = campaign_queries.count_unsupported(store, campaign.id)
    failures = _failure_table(
        store, campaign, counts, unsupported_counts, request, progress.no_failures_text
    )
    unsupported = _unsupported_table(campaign, unsupported_counts, request)
    parts = {
        "progress": progress,
        "sites": sites,
        "failures": failures,
        "unsupported": unsupported,
        "every_s": REFRESH_INTERVAL_S,
    }
    version = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    live = {**parts, "campaign": campaign, "version": version}
    if request.query_params.get("part") == "progress" and requested_format(request) == HTML:
        # Unchanged content is not sent again, so that screen readers do not repeat it.
        status = (
            204
            if request.query_params.get("version") == version and not progress.is_finished
            else 200
        )
        return PageView("campaign_progress.html.j2", campaign.name, live, status=status)
    failed = {row["failure"] for row in (*failures.rows, *unsupported.rows)}
    known = {
        "site": {*states, *(row["site"] for row in (*failures.rows, *unsupported.rows))},
        "state": [state.value for state in JobState],
        "failure": {*BAD_OUTCOME_LABELS, *failed},
    }
    filters = {name: _parse_choice(request, name, values) for name, values in known.items()}
    messages = _message_table(store, campaign, request)
    jobs, count = _job_table(store, campaign, request)
    values = {
        **live,
        "messages": messages,
        "jobs": jobs,
        "job_count": count,
        "page": parse_page_number(request),
        "pages": count_pages(count, JOBS_PER_PAGE),
        "filters": filters,
        "site_names": sorted(states),
        "state_names": known["state"],
        "failure_names": sorted(failed | {filters["failure"]} - {""}),
        "facts": _provenance_facts(store, campaign),
        "links": list(_related_links(campaign, request)),
        "command_line": rerun.rerun_command(campaign),
        "render": rerun.rerun_command(campaign, "render"),
    }
    return PageView(
        "campaign.html.j2",
        campaign.name or campaign.id,
        values,
        (jobs, sites, failures, unsupported, messages),
    )


def _parse_choice(request: Request, name: str, known: Collection[str]) -> str:
    """Value of a filter of jobs, '' for none."""
    value = request.query_params.get(name, "")
    if value and value not in known:
        hint = f"{suggest_word(value, known)}Known: {', '.join(sorted(known)[:_MAX_SUGGESTED])}."
        raise ConfigError(f"{name} cannot be {value[:40]!r} here", hint=hint)
    return value


def _campaign_progress(
    store: Store, campaign: CampaignRow, states: Mapping[str, Mapping[str, int]], recorded: int
) -> CampaignProgress:
    jobs: Counter[str] = Counter()
    for jobs_at_site in states.values():
        jobs.update(jobs_at_site)
    span = campaign_queries.fetch_time_span_us(store, campaign.id)
    planned, remaining_s = campaign.planned_measurements, None
    if span and 0 < recorded < planned:
        remaining_s = (time.time() - span[0] / 1e6) / recorded * (planned - recorded)
        # One significant digit: the estimate is no better, and the page should not flicker.
        remaining_s = float(f"{remaining_s:.1g}")
    return CampaignProgress(recorded, planned, jobs, remaining_s, span and span[1])


def _site_table(
    campaign: CampaignRow,
    states: Mapping[str, Mapping[str, int]],
    counts: Sequence[Any],
    request: Request,
) -> DataTable:
    recorded: Counter[str] = Counter()
    for row in counts:
        recorded[row.site] += row.measurements
    rows = [
        {
            "site": site,
            **{state.value: jobs_at_site.get(state.value, 0) for state in JobState},
            "recorded": recorded[site],
        }
        for site, jobs_at_site in states.items()
    ]
    columns = (
        TableColumn(
            "site", "site", link=lambda row: _link_to_jobs(request, campaign, site=row["site"])
        ),
        *(
            TableColumn(
                state.value,
                state.value,
                lambda count: str(count or "–"),
                is_number=True,
                link=_link_to_state(request, campaign, state.value),
            )
            for state in JobState
        ),
        TableColumn("recorded", "measurements", is_number=True),
    )
    return DataTable(
        "sites", "Jobs by site and state", columns, rows, empty_text="This campaign has no jobs."
    )


def _link_to_state(request: Request, campaign: CampaignRow, state: str) -> Any:
    return lambda row: (
        _link_to_jobs(request, campaign, site=row["site"], state=state) if row[state] else ""
    )


def _link_to_jobs(request: Request, campaign: CampaignRow, **filters: str) -> str:
    return link_to(request, "campaign", campaign_id=campaign.id, query=filters) + "#jobs"


def _failure_table(
    store: Store,
    campaign: CampaignRow,
    counts: Sequence[Any],
    unsupported_counts: Mapping[tuple[str, str], int],
    request: Request,
    empty_text: str,
) -> DataTable:
    """Failure classes by site: failed measurements, and attempts that ended without all of theirs.

    Args:
        store: the database.
        campaign: the campaign.
        counts: measurements by site and outcome.
        unsupported_counts: by site and class, subtracted because they are not failures.
        request: provides the root path of links.
        empty_text: sentence shown if there are no failures.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    failed: Counter[tuple[str, str]] = Counter()

    def row_for(site: str, failure: str) -> dict[str, Any]:
        empty = {"failure": failure, "site": site, "measurements": 0, "attempts": 0, "again": 0}
        return rows.setdefault((failure, site), empty)

    for row in counts:
        if row.failure_class or not row.plausible:
            failed[row.site, row.failure_class or Outcome.IMPLAUSIBLE.value] += row.measurements
    for key, count in (failed - Counter(unsupported_counts)).items():
        row_for(*key)["measurements"] = count
    for attempts in campaign_queries.count_failed_attempts(store, campaign.id):
        row_for(attempts.site, attempts.failure_class).update(
            attempts=attempts.attempts, again=attempts.retried
        )
    columns = (
        _failure_column("class", campaign, request),
        TableColumn("site", "site"),
        TableColumn("measurements", "measurements", is_number=True),
        TableColumn("attempts", "failed attempts of jobs", is_number=True),
        TableColumn("again", "retried", is_number=True),
    )
    return DataTable(
        "failures",
        "Failures by class and site",
        columns,
        [rows[key] for key in sorted(rows)],
        empty_text=empty_text,
    )


def _failure_column(title: str, campaign: CampaignRow, request: Request) -> TableColumn:
    """Column of failures, linked to the jobs of a site that had them."""
    return TableColumn(
        "failure",
        title,
        link=lambda row: _link_to_jobs(request, campaign, site=row["site"], failure=row["failure"]),
    )


def _unsupported_table(
    campaign: CampaignRow, unsupported_counts: Mapping[tuple[str, str], int], request: Request
) -> DataTable:
    rows = [
        {"failure": UNSUPPORTED_LABELS[of_class], "site": site, "measurements": count}
        for (site, of_class), count in sorted(unsupported_counts.items())
    ]
    columns = (
        _failure_column("feature", campaign, request),
        TableColumn("site", "site"),
        TableColumn("measurements", "measurements", is_number=True),
    )
    caption = "Not supported by the release or setup (not failures of the site)"
    return DataTable("unsupported", caption, columns, rows)


def _message_table(store: Store, campaign: CampaignRow, request: Request) -> DataTable:
    """Messages of failed measurements, most frequent first."""
    messages = campaign_queries.list_failure_messages(store, campaign.id)
    number: Counter[tuple[str, ...]] = Counter()
    example: dict[tuple[str, ...], str] = {}
    for measurement in messages:
        key = (
            label_outcome(vars(measurement)),
            measurement.failure_kind,
            measurement.failure_phase,
            measurement.message,
            measurement.site,
        )
        number[key] += 1
        example.setdefault(key, measurement.job_id)
    names = ("failure", "kind", "phase", "message", "site")
    rows = [
        {"count": count, **dict(zip(names, key, strict=True)), "job_id": example[key]}
        for key, count in number.most_common(MAX_MESSAGES)
    ]
    columns = (
        TableColumn("failure", "class"),
        TableColumn("count", "times", is_number=True),
        TableColumn("site", "site"),
        TableColumn("kind", "kind"),
        TableColumn("phase", "phase"),
        TableColumn("message", "message", is_long=True),
        job_column(request, "example job"),
    )
    limits = [f"From the first {len(messages)} failed measurements."] * (
        len(messages) == campaign_queries.MAX_FAILURE_MESSAGES
    )
    limits += [f"The {MAX_MESSAGES} most frequent of {len(number)} messages."] * (
        len(number) > MAX_MESSAGES
    )
    return DataTable("messages", "Failure messages", columns, rows, note=" ".join(limits))


def _job_table(store: Store, campaign: CampaignRow, request: Request) -> tuple[DataTable, int]:
    first = (parse_page_number(request) - 1) * JOBS_PER_PAGE
    lines, count = campaign_queries.list_job_summaries(
        store, campaign.id, request.query_params, first, JOBS_PER_PAGE
    )
    columns = (
        TableColumn("label", "job", link=lambda row: link_to(request, "job", job_id=row["job_id"])),
        TableColumn("job_id", hidden=True),
        TableColumn("site", "site"),
        TableColumn("door", "door"),
        TableColumn("repeat", "repeat", is_number=True),
        TableColumn("state", "state", css_class=lambda row: f"state {row['state']}"),
        TableColumn("attempts", "attempts", is_number=True),
        TableColumn("started_us", "last started", lambda us: format_time(us) if us else "–"),
        TableColumn(
            "seconds",
            "duration",
            lambda s: "–" if s is None else format_duration(s),
            is_number=True,
        ),
        TableColumn("recorded", "recorded", is_number=True),
        TableColumn("planned", "planned", is_number=True),
        TableColumn(
            "failure",
            "failure",
            format_row=lambda row: row["failure"] or format_counts(row["failed"]),
        ),
        TableColumn("failed", hidden=True),
        TableColumn("message", "message", is_long=True),
    )
    rows = [_job_row(line) for line in lines]
    return DataTable(
        "jobs", "Selected jobs", columns, rows, empty_text=_empty_jobs_text(request, count)
    ), count


def _empty_jobs_text(request: Request, count: int) -> str:
    return (
        past_last_page_text(parse_page_number(request), count_pages(count, JOBS_PER_PAGE))
        or "No job matches the filters."
    )


def _job_row(line: JobSummary) -> Row:
    last = line.last_attempt
    duration_s = (
        (last.ended_us - last.started_us) / 1e6
        if last and last.ended_us and last.started_us
        else None
    )
    failure, message = (last.failure_class, last.message) if last else ("", "")
    return {
        "label": line.job.label or line.job.kind,
        "job_id": line.job.id,
        "site": line.job.site,
        "door": line.job.door,
        "repeat": line.job.repeat,
        "state": line.job.state,
        "attempts": line.attempts,
        "started_us": last.started_us if last else None,
        "seconds": duration_s,
        "recorded": line.measurements,
        "planned": line.job.planned_measurements,
        "failure": failure,
        "failed": line.failures,
        "message": message if failure else line.message or message,
    }


def _provenance_facts(store: Store, campaign: CampaignRow) -> list[tuple[str, str]]:
    """Origin of the test and parameters of the plan."""
    datasets = campaign_queries.list_datasets(store, campaign.id)
    return [*_test_origin(campaign), *_plan_facts(json.loads(campaign.plan), datasets)]


def _related_links(campaign: CampaignRow, request: Request) -> Iterator[tuple[str, str]]:
    """Links to the campaign's results, each with a title."""
    filters = {"campaign": campaign.id}
    yield "CPU efficiency by site", link_to(request, "s0", query=filters)
    time_per_event = {"metric": "cpu_per_event_s", "by": VARIANT_COLUMN, "color": "axis_root"}
    yield "CPU time per event", link_to(request, "explore", query={**time_per_event, **filters})
    latency = {"view": "latency", "by": "site", "color": "axis_root"}
    yield "Read latency", link_to(request, "explore", query={**latency, **filters})
    definition = json.loads(campaign.plan).get("definition", {})
    if definition.get("load"):
        yield "Load", link_to(request, "campaign-load", campaign_id=campaign.id)
    releases = definition.get("axes", {}).get("root", [])
    if len(releases) > 1:
        sides = {"a": releases[0], "b": releases[-1]}
        title = f"{sides['b']} compared with {sides['a']}"
        yield title, link_to(request, "compare", query={**sides, **filters})
    yield "ROOT file", link_to(request, "rootfile", query=filters)


def _test_origin(campaign: CampaignRow) -> Iterator[tuple[str, str]]:
    yield "campaign", campaign.id
    at = f" at {campaign.ref}" if campaign.ref else ""
    yield "repository", f"{campaign.repository}{at}"
    dirty = ", with uncommitted changes" if campaign.dirty else ""
    yield "commit", (campaign.commit_id or "none (not from a repository)") + dirty
    yield "test", f"{campaign.test_name} ({campaign.test_path})"


def _plan_facts(
    plan: Mapping[str, Any], datasets: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Parameters of the plan; datasets with their hashes as soon as measurements report them."""
    definition = plan.get("definition", {})
    dataset_texts = [f"{name} ({hash_})" if hash_ else name for name, hash_ in datasets]
    if dataset_texts or definition.get("dataset"):
        yield "dataset", ", ".join(dataset_texts) or definition["dataset"]
    for site, template in plan.get("templates", {}).items():
        yield f"template at {site}", template
    for axis, values in definition.get("axes", {}).items():
        yield axis, ", ".join(map(str, values))
    for name in ("bundle", "repeats", "rounds", "passes", "seed"):
        value = definition.get(name)
        if value not in (None, "", []):
            yield name, ", ".join(value) if isinstance(value, list) else str(value)
