"""Page of one campaign: progress, failures, jobs, provenance and how to run it again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.comparison.limit_outcomes import judge_limits
from treehammer.analysis.comparison.wording.limit_text import make_limit_table
from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.outcome import BAD_OUTCOME_LABELS
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import count_campaign
from treehammer.sql.write.store import Store
from treehammer.submit.lifecycle import rerun
from treehammer.tables import DataTable
from treehammer.web.core.route_paths import require_text
from treehammer.web.views.campaign.campaign_facts import describe_provenance, list_related_links
from treehammer.web.views.campaign.campaign_progress import make_progress
from treehammer.web.views.campaign.campaign_tables import (
    JOBS_PER_PAGE,
    build_failure_table,
    build_job_table,
    build_message_table,
    build_site_table,
    build_unsupported_table,
)
from treehammer.web.views.shared.page_context import (
    HTML,
    PageContext,
    PageView,
    requested_format,
)
from treehammer.web.views.shared.pagination import (
    count_pages,
    parse_page_number,
)

#: Known values listed for an unknown one.
_MAX_SUGGESTED = 20
#: Measurements of a campaign whose limits the page judges; of larger ones `treehammer check` does.
MAX_LIMITED_MEASUREMENTS = 2_000
#: Seconds between two refreshes of a running campaign's progress.
REFRESH_INTERVAL_S = 5


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the page's route; ``?part=progress`` selects the part that changes during jobs."""
    return [context.page_route(require_text("/campaigns/{campaign_id}"), campaign_view, "campaign")]


def campaign_view(store: Store, request: Request) -> PageView:
    """Collect the data of the page.

    Raises:
        ConfigError: a filter of jobs has an unknown value.
        NothingToDoError: the campaign does not exist.
    """
    campaign = campaign_queries.fetch_campaign(store, request.path_params["campaign_id"])
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
    bad_rows = (*failures.rows, *unsupported.rows)
    failed = {row["failure"] for row in bad_rows}
    job_sites = [site for site, of_site in count.sites.items() if of_site.jobs]
    choices = {
        "site": {*job_sites, *(row["site"] for row in bad_rows)},
        "state": [state.value for state in JobState],
        "failure": {*BAD_OUTCOME_LABELS, *failed},
    }
    filters = {name: _parse_choice(request, name, values) for name, values in choices.items()}
    messages = build_message_table(store, campaign, request)
    limits = _build_limit_table(store, campaign)
    jobs, job_count = build_job_table(store, campaign, request)
    values = {
        **live,
        "limits": limits,
        "messages": messages,
        "jobs": jobs,
        "job_count": job_count,
        "page": parse_page_number(request),
        "pages": count_pages(job_count, JOBS_PER_PAGE),
        "filters": filters,
        "site_names": sorted(job_sites),
        "state_names": choices["state"],
        "failure_names": sorted(failed | {filters["failure"]} - {""}),
        "facts": describe_provenance(store, campaign),
        "links": list(list_related_links(campaign, request)),
        "command_line": rerun.rerun_command(campaign),
        "render": rerun.rerun_command(campaign, "render"),
    }
    return PageView(
        "campaign.html.j2",
        campaign.name or campaign.id,
        values,
        (jobs, sites, failures, unsupported, messages, limits),
    )


def _build_limit_table(store: Store, campaign: CampaignRow) -> DataTable:
    """Build the table of the limits that the test states; empty for a test without limits."""
    if not json.loads(campaign.plan).get("definition", {}).get("expect"):
        return DataTable("limits", "Limits", (), (), empty_text="")
    if campaign.planned_measurements > MAX_LIMITED_MEASUREMENTS:
        text = f"Judge this large campaign by: treehammer check --campaign {campaign.id}"
        return DataTable("limits", "Limits", (), (), empty_text=text)
    return make_limit_table(judge_limits(store, campaign, time.time_ns() // 1000))


def _parse_choice(request: Request, name: str, choices: Collection[str]) -> str:
    """Return the value of a filter of jobs, '' for none."""
    value = request.query_params.get(name, "")
    if value and value not in choices:
        hint = (
            f"{suggest_word(value, choices)}Known: {', '.join(sorted(choices)[:_MAX_SUGGESTED])}."
        )
        raise ConfigError(f"{name} cannot be {value[:40]!r} here", hint=hint)
    return value
