"""List of campaigns, newest first, and the page of one.

The page of a campaign has its progress, failures, jobs, provenance and how to run it again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.comparison.limit_outcomes import judge_limits
from treehammer.analysis.comparison.limit_text import make_limit_table
from treehammer.collectors.job_spec import JobState
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import CampaignCount, MeasurementCount, count_campaign
from treehammer.sql.watch.state_history import split_door_label
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_outcome
from treehammer.tables import DataTable, Row
from treehammer.text_formatting import format_duration, pluralize
from treehammer.web.arranged_table import count_pages, past_last_page_text
from treehammer.web.core.responses import require_text
from treehammer.web.labels import VARIANT_COLUMN
from treehammer.web.page_query import FormInput, ListQuery, PageOperation
from treehammer.web.pages.campaign_tables import (
    JOBS_PER_PAGE,
    CampaignQuery,
    build_failure_table,
    build_job_table,
    build_message_table,
    build_site_table,
    build_unsupported_table,
)
from treehammer.web.pages.common_tables import campaign_table, describe_states
from treehammer.web.pages.page_context import (
    HTML,
    PageContext,
    PageModule,
    PageView,
    link_to,
    requested_format,
)

#: Campaigns on one page.
CAMPAIGNS_PER_PAGE = 20
#: Measurements of a campaign whose limits the page judges; of larger ones `treehammer check` does.
MAX_LIMITED_MEASUREMENTS = 2_000
#: Seconds between two refreshes of a running campaign's progress.
REFRESH_INTERVAL_S = 5


#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/campaigns",
        "listCampaigns",
        "campaigns",
        "Campaigns, newest first, 20 per page",
        {"campaigns": "campaigns"},
        ListQuery,
        ("page", "pages", "count"),
    ),
    PageOperation(
        "/campaigns/{campaign_id}",
        "getCampaign",
        "campaign",
        "A campaign: progress, failures, jobs, submitted command",
        {
            "jobs": "selected jobs",
            "sites": "jobs by site and state",
            "failures": "failures by class and site",
            "unsupported": "tests that a release or setup does not support, by site",
            "messages": "error messages",
            "limits": "limits that the test states, with their outcomes",
        },
        CampaignQuery,
        ("progress", "facts", "command_line", "render", "page", "pages", "job_count"),
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the list and of a campaign.

    ``?part=progress`` selects the part of a campaign's page that changes during jobs.
    """
    return [
        context.page_route("/campaigns", campaign_list_view, "campaigns"),
        context.page_route(require_text("/campaigns/{campaign_id}"), campaign_view, "campaign"),
    ]


PAGES = PageModule(routes, position=50, menu={"campaigns": "Campaigns"}, operations=OPERATIONS)


def campaign_list_view(store: Store, request: Request) -> PageView:
    """Collect the data of the list."""
    number = ListQuery.parse(request).page
    campaigns, count = campaign_queries.list_campaigns(
        store, (number - 1) * CAMPAIGNS_PER_PAGE, CAMPAIGNS_PER_PAGE
    )
    page_count = count_pages(count, CAMPAIGNS_PER_PAGE)
    table = campaign_table("campaigns", "Campaigns, newest first", campaigns, request)
    table = replace(
        table,
        empty_text=past_last_page_text(number, page_count),
        is_arrangeable=page_count == 1,
    )
    values = {"page": number, "pages": page_count, "count": count}
    return PageView("campaigns.html.j2", "Campaigns", values, (table,))


def campaign_view(store: Store, request: Request) -> PageView:
    """Collect the data of the page.

    Raises:
        ConfigError: a filter of jobs has an unknown value.
        NothingToDoError: the campaign does not exist.
    """
    query = CampaignQuery.parse(request)
    campaign = campaign_queries.fetch_campaign(store, query.campaign_id)
    count = count_campaign(store, campaign.id, time.time_ns() // 1000)
    progress = make_progress(store, campaign, count)
    sites = build_site_table(campaign, count, request)
    failures = build_failure_table(store, campaign, count, request, progress.no_failures_text)
    unsupported = build_unsupported_table(campaign, count, request)
    parts = {
        "progress": progress,
        "sites": sites,
        "failures": failures,
        "unsupported": unsupported,
        "every_s": REFRESH_INTERVAL_S,
    }
    progress_hash = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    live = {**parts, "campaign": campaign, "progress_hash": progress_hash}
    if request.query_params.get("part") == "progress" and requested_format(request) == HTML:
        # Unchanged content is not sent again, so that screen readers do not repeat it.
        is_unchanged = request.query_params.get("shown") == progress_hash
        is_unchanged = is_unchanged and not progress.is_finished
        status = 204 if is_unchanged else 200
        return PageView("campaign_progress.html.j2", campaign.name, live, status=status)
    messages = build_message_table(store, campaign, request)
    limits = _build_limit_table(store, campaign)
    jobs, job_count = build_job_table(store, query, request)
    values = {
        **live,
        "limits": limits,
        "messages": messages,
        "jobs": jobs,
        "job_count": job_count,
        "page": query.page,
        "pages": count_pages(job_count, JOBS_PER_PAGE),
        "form": _list_filters(query, count, (*failures.rows, *unsupported.rows)),
        "facts": describe_provenance(store, campaign),
        "links": list(list_related_links(campaign, request)),
        "command_line": campaign_outcome.rerun_command(campaign),
        "render": campaign_outcome.rerun_command(campaign, "render"),
    }
    return PageView(
        "campaign.html.j2",
        campaign.name or campaign.id,
        values,
        (jobs, sites, failures, unsupported, messages, limits),
    )


def _list_filters(
    query: CampaignQuery, count: CampaignCount, bad_rows: Sequence[Row]
) -> list[FormInput]:
    """List the filters of jobs.

    Raises:
        ConfigError: the campaign has no jobs at the site.
    """
    job_sites = sorted(site for site, of_site in count.sites.items() if of_site.jobs)
    query.require_choice("site", (*job_sites, *(row["site"] for row in bad_rows)))
    failures = {*(row["failure"] for row in bad_rows), query.failure} - {""}
    return query.list_inputs(
        site=job_sites,
        state=(),
        failure={"": "any or none", **{name: name for name in sorted(failures)}},
    )


def _build_limit_table(store: Store, campaign: CampaignRow) -> DataTable:
    """Build the table of the limits that the test states; empty for a test without limits."""
    if not json.loads(campaign.plan).get("definition", {}).get("expect"):
        return DataTable("limits", "Limits", (), (), empty_text="")
    if campaign.planned_measurements > MAX_LIMITED_MEASUREMENTS:
        text = f"Judge this large campaign by: treehammer check --campaign {campaign.id}"
        return DataTable("limits", "Limits", (), (), empty_text=text)
    return make_limit_table(judge_limits(store, campaign, time.time_ns() // 1000))


@dataclass(frozen=True)
class CampaignProgress:
    """Progress of a campaign.

    Attributes:
        count: its jobs and measurements.
        planned: planned measurements; known before the jobs are.
        remaining_s: expected seconds to completion at the current pace, None if unknown.
        as_of_us: latest start or end of a job known from its batch system, None before the first.
    """

    count: MeasurementCount
    planned: int
    remaining_s: float | None
    as_of_us: int | None

    @property
    def is_finished(self) -> bool:
        """Whether no further measurements are expected."""
        return self.count.is_finished or self.count.measured >= self.planned

    @property
    def sentence(self) -> str:
        """Progress as a sentence."""
        text = f"{replace(self.count, planned=self.planned).describe()}"
        if self.count.superseded:
            text += (
                f"; {pluralize(self.count.superseded, 'measurement')} repeated by later attempts"
            )
        text += f"; jobs: {describe_states(self.count.jobs) or 'none'}"
        if self.remaining_s is not None and not self.is_finished:
            text += f"; about {format_duration(self.remaining_s)} remaining at the current pace"
        return f"{text}."

    @property
    def no_failures_text(self) -> str:
        """Sentence shown if there are no known failures."""
        if not self.is_finished:
            return "No failures so far."
        missing = self.planned - self.count.measured
        if missing <= 0:
            return "No failures."
        planned = pluralize(self.planned, "planned measurement")
        text = f"No known failures, but {missing} of {planned} are missing"
        cancelled = self.count.jobs[JobState.CANCELLED.value]
        if cancelled:
            text += (
                f": {pluralize(cancelled, 'job')} {'was' if cancelled == 1 else 'were'} cancelled"
            )
        return f"{text}."

    def as_dict(self) -> dict[str, Any]:
        """Progress as a dictionary, for JSON."""
        return {
            "recorded": self.count.measured,
            "planned": self.planned,
            "failed": self.count.failed,
            "missing": dict(self.count.missing),
            "superseded": self.count.superseded,
            "jobs": dict(self.count.jobs),
            "remaining_s": self.remaining_s,
            "as_of_us": self.as_of_us,
            "over": self.is_finished,
        }


def make_progress(store: Store, campaign: CampaignRow, count: CampaignCount) -> CampaignProgress:
    """Make the progress of a campaign from its count."""
    span = campaign_queries.fetch_time_span_us(store, campaign.id)
    remaining_s = count.remaining_s
    if remaining_s is not None:
        # One significant digit: the estimate is not better, and the page should not flicker.
        remaining_s = float(f"{remaining_s:.1g}")
    planned = campaign.planned_measurements or count.total.planned
    return CampaignProgress(count.total, planned, remaining_s, span and span[1])


def describe_provenance(store: Store, campaign: CampaignRow) -> list[tuple[str, str]]:
    """Describe the origin of the test and the parameters of the plan."""
    datasets = campaign_queries.list_datasets(store, campaign.id)
    return [*_test_origin(campaign), *_plan_facts(json.loads(campaign.plan), datasets)]


def list_related_links(campaign: CampaignRow, request: Request) -> Iterator[tuple[str, str]]:
    """Yield links to the campaign's results, each with a title."""
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
    ref_text = f" at {campaign.ref}" if campaign.ref else ""
    yield "repository", f"{campaign.repository}{ref_text}"
    dirty = ", with uncommitted changes" if campaign.dirty else ""
    yield "commit", (campaign.commit_id or "none (not from a repository)") + dirty
    yield "test", f"{campaign.test_name} ({campaign.test_path})"


def _plan_facts(
    plan: Mapping[str, Any], datasets: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """List the plan's parameters; datasets with their hashes once measurements report them."""
    definition = plan.get("definition", {})
    named = ", ".join(f"{name} ({hash_})" if hash_ else name for name, hash_ in datasets)
    if dataset := named or definition.get("dataset"):
        yield "dataset", dataset
    yield from _site_facts(plan)
    for axis, values in definition.get("axes", {}).items():
        if axis != "dataset" or not datasets:
            yield axis, ", ".join(map(str, values))
    for name in ("bundle", "repeats", "rounds", "passes", "seed"):
        value = definition.get(name)
        if value not in (None, "", []):
            yield name, ", ".join(value) if isinstance(value, list) else str(value)


def _site_facts(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """List the sites and doors that the plan excludes or includes, and the templates of sites."""
    for name in ("excluded", "included"):
        for label, reason in plan.get(name, {}).items():
            kind = "door" if split_door_label(label)[1] else "site"
            yield f"{name} {kind} {label}", reason
    for site, template in plan.get("templates", {}).items():
        yield f"template at {site}", template
