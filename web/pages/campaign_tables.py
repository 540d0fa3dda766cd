"""Tables of a campaign: sites, failures, messages, jobs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.outcome import (
    BAD_OUTCOME_LABELS,
    FAILURE_CLASSES,
    UNSUPPORTED_LABELS,
    label_outcome,
)
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import CampaignCount
from treehammer.sql.read.campaign_queries import JobSummary
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.text_formatting import format_counts, format_duration
from treehammer.web.arranged_table import count_pages, past_last_page_text
from treehammer.web.display_formats import format_time
from treehammer.web.page_query import OneOf, PageNumber, PageQuery, PathText, Text
from treehammer.web.pages.common_tables import job_column
from treehammer.web.pages.page_context import link_to

#: Jobs on one page of the list.
JOBS_PER_PAGE = 100
#: Kinds of failure messages shown.
MAX_MESSAGES = 30


def build_site_table(campaign: CampaignRow, count: CampaignCount, request: Request) -> DataTable:
    """Build the table of jobs and measurements by site; ``request`` gives the root of links."""
    rows = [
        {
            "site": site,
            **{state.value: of_site.jobs[state.value] for state in JobState},
            "recorded": of_site.measured,
            "failed": of_site.failed,
            "missing": of_site.missing.total(),
        }
        for site, of_site in count.sites.items()
        if of_site.jobs
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
        TableColumn("recorded", "measured", is_number=True),
        TableColumn("failed", "of them failed", is_number=True),
        TableColumn("missing", "missing", is_number=True),
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


def build_failure_table(
    store: Store,
    campaign: CampaignRow,
    count: CampaignCount,
    request: Request,
    empty_text: str,
) -> DataTable:
    """Build the table of failures by class and site: measurements, and attempts that ended early.

    Args:
        store: the database.
        campaign: the campaign.
        count: its measurements.
        request: provides the root path of links.
        empty_text: sentence shown if there are no failures.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}

    def row_for(site: str, failure: str) -> dict[str, Any]:
        names = ("measurements", "missing", "transient", "attempts", "again")
        return rows.setdefault(
            (failure, site), {"failure": failure, "site": site, **dict.fromkeys(names, 0)}
        )

    for site, of_site in count.sites.items():
        for failure, number in of_site.failures.items():
            row_for(site, failure)["measurements"] = number
        for failure, number in of_site.missing.items():
            if failure in FAILURE_CLASSES:
                row_for(site, failure)["missing"] = number
    for (site, failure), number in campaign_queries.count_transient(store, campaign.id).items():
        if (failure, site) in rows:
            rows[failure, site]["transient"] = number
    for attempts in campaign_queries.count_failed_attempts(store, campaign.id):
        row_for(attempts.site, attempts.failure_class).update(
            attempts=attempts.attempts, again=attempts.retried
        )
    columns = (
        _failure_column("class", campaign, request),
        TableColumn("site", "site"),
        TableColumn("measurements", "measurements", is_number=True),
        TableColumn("transient", "transient", is_number=True),
        TableColumn("missing", "missing measurements", is_number=True),
        TableColumn("attempts", "failed attempts of jobs", is_number=True),
        TableColumn("again", "retried", is_number=True),
    )
    return DataTable(
        "failures",
        "Failures by class and site",
        columns,
        sorted(rows.values(), key=_failure_order),
        empty_text=empty_text,
    )


def _failure_order(row: Row) -> tuple[Any, ...]:
    """Sort failures by size; those that a retry can cure come last."""
    lasting = row["measurements"] - row["transient"]
    is_transient = row["transient"] > 0 and lasting <= 0
    return is_transient, -lasting, -row["attempts"], row["failure"], row["site"]


def _failure_column(title: str, campaign: CampaignRow, request: Request) -> TableColumn:
    """Build the column of failures, linked to the jobs of a site that had them."""
    return TableColumn(
        "failure",
        title,
        link=lambda row: _link_to_jobs(request, campaign, site=row["site"], failure=row["failure"]),
    )


def build_unsupported_table(
    campaign: CampaignRow, count: CampaignCount, request: Request
) -> DataTable:
    """Build the table of features that a release or setup lacks, by site."""
    rows = [
        {"failure": label, "site": site, "measurements": of_site.outcomes[label]}
        for site, of_site in count.sites.items()
        for label in UNSUPPORTED_LABELS.values()
        if of_site.outcomes[label]
    ]
    columns = (
        _failure_column("feature", campaign, request),
        TableColumn("site", "site"),
        TableColumn("measurements", "measurements", is_number=True),
    )
    caption = "Not supported by the release or setup (not failures of the site)"
    return DataTable("unsupported", caption, columns, rows)


def build_message_table(store: Store, campaign: CampaignRow, request: Request) -> DataTable:
    """Build the table of messages of failed measurements, most frequent first."""
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


class CampaignQuery(PageQuery):
    """Parameters of a campaign's page."""

    campaign_id: PathText = Field(description="Identity.")
    site: Text = Field("", description="Only jobs of this site.")
    state: Annotated[str, OneOf([state.value for state in JobState])] = Field(
        "", description="Only jobs in this state."
    )
    failure: Annotated[str, OneOf(BAD_OUTCOME_LABELS)] = Field(
        "", description="Only jobs with this failure."
    )
    page: PageNumber = Field(1, description="Page number of the jobs.")


def build_job_table(store: Store, query: CampaignQuery, request: Request) -> tuple[DataTable, int]:
    """Build one page of the table of jobs; also return the number of jobs on all pages."""
    lines, count = campaign_queries.list_job_summaries(
        store,
        query.campaign_id,
        query.model_dump(include={"site", "state", "failure"}),
        (query.page - 1) * JOBS_PER_PAGE,
        JOBS_PER_PAGE,
        natural_sort_key,
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
        TableColumn("seconds", "duration", format_duration, is_number=True),
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
        "jobs",
        "Selected jobs",
        columns,
        rows,
        empty_text=past_last_page_text(query.page, count_pages(count, JOBS_PER_PAGE))
        or "No job matches the filters.",
        is_arrangeable=count <= JOBS_PER_PAGE,
    ), count


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
