"""Tables of a campaign: sites, failures, messages, jobs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import Field

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.outcome import (
    BAD_OUTCOME_LABELS,
    UNSUPPORTED_LABELS,
    label_outcome,
)
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import CampaignCount
from treehammer.sql.read.campaign_queries import FailureCount, JobSummary
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn, build_table
from treehammer.text_formatting import format_counts
from treehammer.web.addresses import link_rows, link_to
from treehammer.web.arranged_table import count_pages, past_last_page_text
from treehammer.web.columns import column, columns, hidden, job_column
from treehammer.web.display_formats import format_time
from treehammer.web.page_query import OneOf, PageNumber, PageQuery, PathText, Text

#: Jobs on one page of the list.
JOBS_PER_PAGE = 100
#: Kinds of failure messages shown.
MAX_MESSAGES = 30


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


def _link_to_jobs(campaign: CampaignRow, **filters: str) -> str:
    return link_to("campaign", campaign_id=campaign.id, query=filters) + "#jobs"


def build_site_table(campaign: CampaignRow, count: CampaignCount) -> DataTable:
    """Build the table of jobs and measurements by site."""

    def count_jobs(state: str) -> TableColumn:
        return column(
            state,
            format_value=lambda jobs: str(jobs or "–"),
            is_number=True,
            value=lambda item: item[1].jobs[state],
            link=lambda row: (
                _link_to_jobs(campaign, site=row["site"], state=state) if row[state] else ""
            ),
        )

    return build_table(
        "sites",
        "Jobs by site and state",
        (
            column(
                "site",
                value=lambda item: item[0],
                link=lambda row: _link_to_jobs(campaign, site=row["site"]),
            ),
            *(count_jobs(state.value) for state in JobState),
            column("recorded", "measured", value=lambda item: item[1].measured),
            column("failed", "of them failed", value=lambda item: item[1].failed),
            column("implausible", value=lambda item: item[1].implausible),
            column("missing", is_number=True, value=lambda item: item[1].missing.total()),
        ),
        [item for item in count.sites.items() if item[1].jobs],
        empty_text="This campaign has no jobs.",
    )


def build_failure_table(
    store: Store, campaign: CampaignRow, count: CampaignCount, empty_text: str
) -> DataTable:
    """Build the table of failures by class and site."""
    return build_table(
        "failures",
        "Failures by class and site",
        (
            _failure_column("class", campaign),
            TableColumn("site", "site"),
            *columns("measurements", "transient"),
            column("missing", "missing measurements", is_number=True),
            column("attempts", "failed attempts of jobs"),
            column("again", "retried", is_number=True),
        ),
        campaign_queries.count_failures(store, campaign.id, count),
        empty_text=empty_text,
    )


def _failure_column(title: str, campaign: CampaignRow) -> TableColumn:
    """Build the column of failures, linked to the jobs of a site that had them."""
    return column(
        "failure",
        title,
        link=lambda row: _link_to_jobs(campaign, site=row["site"], failure=row["failure"]),
    )


def build_unsupported_table(campaign: CampaignRow, count: CampaignCount) -> DataTable:
    """Build the table of features that a release or setup lacks, by site."""
    unsupported = [
        FailureCount(label, site, of_site.outcomes[label])
        for site, of_site in count.sites.items()
        for label in UNSUPPORTED_LABELS.values()
        if of_site.outcomes[label]
    ]
    return build_table(
        "unsupported",
        "Not supported by the release or setup (not failures of the site)",
        (_failure_column("feature", campaign), TableColumn("site", "site"), column("measurements")),
        unsupported,
    )


def build_message_table(store: Store, campaign: CampaignRow) -> DataTable:
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
    listed_columns = (
        column("failure", "class"),
        column("count", "times", is_number=True),
        TableColumn("site", "site"),
        *columns("kind", "phase", "message"),
        job_column(example.values(), "example job"),
    )
    limits = []
    if len(messages) == campaign_queries.MAX_FAILURE_MESSAGES:
        limits.append(f"From the first {len(messages)} failed measurements.")
    if len(number) > MAX_MESSAGES:
        limits.append(f"The {MAX_MESSAGES} most frequent of {len(number)} messages.")
    return DataTable("messages", "Failure messages", listed_columns, rows, note=" ".join(limits))


def build_job_table(store: Store, query: CampaignQuery) -> tuple[DataTable, int]:
    """Build one page of the table of jobs; also return the number of jobs on all pages."""
    lines, count = campaign_queries.list_job_summaries(
        store,
        query.campaign_id,
        query.model_dump(include={"site", "state", "failure"}),
        (query.page - 1) * JOBS_PER_PAGE,
        JOBS_PER_PAGE,
        natural_sort_key,
    )
    listed_columns = (
        column("label", "job", link=link_rows("job", job_id="job_id")),
        hidden("job_id"),
        TableColumn("site", "site"),
        *columns("door", "repeat"),
        TableColumn("state", "state", css_class=lambda row: f"state {row['state']}"),
        column("attempts"),
        column(
            "started_us", "last started", format_value=lambda us: format_time(us) if us else "–"
        ),
        *columns("seconds", "recorded", "planned"),
        column("failure", format_row=lambda row: row["failure"] or format_counts(row["failed"])),
        hidden("failed"),
        column("message"),
    )
    empty = past_last_page_text(query.page, count_pages(count, JOBS_PER_PAGE))
    table = DataTable(
        "jobs",
        "Selected jobs",
        listed_columns,
        list(map(_flatten_job, lines)),
        empty_text=empty or "No job matches the filters.",
        is_arrangeable=count <= JOBS_PER_PAGE,
    )
    return table, count


def _flatten_job(line: JobSummary) -> dict[str, Any]:
    """Return the values of a job's last attempt, or those of an attempt that did not start."""
    last = line.last_attempt
    failure = last.failure_class if last else ""
    message = last.message if last else ""
    seconds = None
    if last and last.ended_us and last.started_us:
        seconds = (last.ended_us - last.started_us) / 1e6
    return {
        "label": line.job.label or line.job.kind,
        "job_id": line.job.id,
        "site": line.job.site,
        "door": line.job.door,
        "repeat": line.job.repeat,
        "state": line.job.state,
        "attempts": line.attempts,
        "started_us": last.started_us if last else None,
        "seconds": seconds,
        "recorded": line.measurements,
        "planned": line.job.planned_measurements,
        "failure": failure,
        "failed": line.failures,
        "message": message if failure else line.message or message,
    }
