"""Campaigns: the list, and a page with progress, failures, jobs and provenance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treehammer.analysis.comparison.limit_outcomes import judge_limits
from treehammer.analysis.comparison.limit_text import make_limit_table
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.core.subjects import split_door_label
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.campaign_counts import CampaignCount, count_campaign, is_over
from treehammer.sql.read.cost_queries import describe_amounts, load_campaign_cost
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_outcome
from treehammer.tables import DataTable, Row
from treehammer.text_formatting import format_duration, pluralize
from treehammer.web import sections as ui
from treehammer.web.addresses import has_page, link_to, link_to_same_page
from treehammer.web.arranged_table import count_pages, past_last_page_text
from treehammer.web.display_formats import format_time
from treehammer.web.figure_links import list_figure_links
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import ListQuery
from treehammer.web.pages import campaign_tables
from treehammer.web.pages.common_tables import campaign_table, describe_states

#: Measurements of a campaign whose limits the page judges; of larger ones `treehammer check` does.
MAX_LIMITED_MEASUREMENTS = 2_000
#: Campaigns on one page.
CAMPAIGNS_PER_PAGE = 20
#: Seconds between two refreshes of a running campaign's progress.
REFRESH_INTERVAL_S = 5


@page(
    "/campaigns",
    "campaigns",
    ListQuery,
    menu="Campaigns",
    position=50,
    api=PageOperation(
        "listCampaigns",
        "Campaigns, newest first, 20 per page",
        {"campaigns": "campaigns"},
        ("page", "pages", "count"),
    ),
)
def campaign_list_page(request: PageRequest[ListQuery]) -> PageContent:
    """Build the list."""
    number = request.query.page
    campaigns, count = campaign_queries.list_campaigns(
        request.store, (number - 1) * CAMPAIGNS_PER_PAGE, CAMPAIGNS_PER_PAGE
    )
    pages = count_pages(count, CAMPAIGNS_PER_PAGE)
    table = replace(
        campaign_table("campaigns", "Campaigns, newest first", campaigns),
        empty_text=past_last_page_text(number, pages),
        is_arrangeable=pages == 1,
    )
    start = ui.suggest("No campaigns yet. Start one:", "treehammer submit ttree-read --wait")
    sections = (table, ui.build_pager(number, pages)) if count else start
    about = {"page": number, "pages": pages, "count": count}
    return PageContent("Campaigns", sections, (table,), about)


@page(
    "/campaigns/{campaign_id:some}",
    "campaign",
    campaign_tables.CampaignQuery,
    position=51,
    api=PageOperation(
        "getCampaign",
        "A campaign: progress, failures, jobs, submitted command",
        {
            "jobs": "selected jobs",
            "sites": "jobs by site and state",
            "failures": "failures by class and site",
            "unsupported": "tests that a release or setup does not support, by site",
            "messages": "error messages",
            "limits": "limits that the test states, with their outcomes",
        },
        ("progress", "facts", "command_line", "render", "page", "pages", "job_count"),
    ),
)
def campaign_page(request: PageRequest[campaign_tables.CampaignQuery]) -> PageContent:
    """Build the page; ``?part=progress`` selects the part that changes during jobs."""
    store, query = request.store, request.query
    campaign = campaign_queries.load_campaign(store, query.campaign_id)
    count = count_campaign(store, campaign.id, current_us())
    progress = CampaignProgress(store, campaign, count)
    sites = campaign_tables.build_site_table(campaign, count)
    failures = campaign_tables.build_failure_table(
        store, campaign, count, progress.no_failures_text
    )
    unsupported = campaign_tables.build_unsupported_table(campaign, count)
    live, fingerprint = _build_live_part(campaign, progress, sites, failures, unsupported)
    parameters = request.raw.query_params
    if parameters.get("part") == "progress" and request.is_html:
        # Unchanged content is not sent again, so that screen readers do not repeat it.
        is_unchanged = parameters.get("shown") == fingerprint and not progress.is_finished
        status = 204 if is_unchanged else 200
        return PageContent(campaign.name, [live], status=status, is_part=True)
    messages = campaign_tables.build_message_table(store, campaign)
    limits = DataTable("limits", "Limits", (), (), empty_text="")
    if campaign.plan.definition.expect:
        if campaign.planned_measurements > MAX_LIMITED_MEASUREMENTS:
            text = f"Judge this large campaign by: treehammer check --campaign {campaign.id}"
            limits = replace(limits, empty_text=text)
        else:
            limits = make_limit_table(judge_limits(store, campaign, current_us()))
    jobs, job_count = campaign_tables.build_job_table(store, query)
    pages = count_pages(job_count, campaign_tables.JOBS_PER_PAGE)
    facts = list(_describe_provenance(store, campaign))
    form = _build_form(query, count, (*failures.rows, *unsupported.rows))
    sections = (
        *_describe_submission(store, campaign),
        live,
        ui.if_filled(messages),
        ui.Titled("Limits of the test", limits, anchor="expected")
        if limits.rows or limits.empty_text
        else None,
        ui.Titled("Provenance", ui.Facts(facts), anchor="ran"),
        _suggest_rerun(campaign),
        ui.Titled(
            "Jobs",
            form,
            ui.quiet(pluralize(job_count, "job")),
            jobs,
            ui.build_pager(query.page, pages, "#jobs"),
            anchor="jobs",
        ),
    )
    about = {
        "progress": progress.as_dict(),
        "facts": dict(facts),
        "command_line": campaign_outcome.rerun_command(campaign),
        "render": campaign_outcome.rerun_command(campaign, "render"),
        "page": query.page,
        "pages": pages,
        "job_count": job_count,
    }
    return PageContent(
        campaign.name or campaign.id,
        sections,
        (jobs, sites, failures, unsupported, messages, limits),
        about,
        [ui.Link("Campaigns", link_to("campaigns"))],
    )


def _build_form(
    query: campaign_tables.CampaignQuery, count: CampaignCount, bad_rows: Sequence[Row]
) -> ui.Form:
    """Build the filters of jobs; a site without jobs is refused."""
    job_sites = sorted(site for site, of_site in count.sites.items() if of_site.jobs)
    query.require_choice("site", (*job_sites, *(row["site"] for row in bad_rows)))
    names = {*(row["failure"] for row in bad_rows), query.failure} - {""}
    choices = {"": "any or none", **{name: name for name in sorted(names)}}
    return ui.Form(query.list_inputs(site=job_sites, state=(), failure=choices), anchor="#jobs")


def _build_live_part(
    campaign: CampaignRow, progress: CampaignProgress, *tables: DataTable
) -> tuple[ui.Live, str]:
    """Build the part that changes during jobs, and the fingerprint of its content.

    Args:
        tables: of sites, failures and unsupported tests.
    """
    sites, failures, unsupported = tables
    changing = [progress.as_dict(), *(table.rows for table in tables)]
    fingerprint = hashlib.sha256(json.dumps(changing).encode()).hexdigest()[:16]
    address = link_to_same_page(part="progress", shown=fingerprint)
    live = ui.Live(
        *_list_progress(campaign, progress),
        ui.Titled("Failures", failures, ui.if_filled(unsupported), anchor="failures"),
        ui.Titled("Sites", sites, anchor="sites"),
        address="" if progress.is_finished else address,
        every_s=REFRESH_INTERVAL_S,
    )
    return live, fingerprint


def _describe_submission(store: Store, campaign: CampaignRow) -> Iterator[ui.Section]:
    """Describe test, submitter, time and cost, and link to the results."""
    (state,) = overview_queries.load_campaign_states(store, [campaign.id])
    submitter = state.submitter
    yield ui.quiet(
        f"Test {campaign.test_name}{' at ' if campaign.commit_id else ''}",
        ui.Code(campaign.commit_id[:12]) if campaign.commit_id else "",
        f"{', with uncommitted changes' if campaign.dirty else ''} · submitted "
        f"{format_time(campaign.created_us)}{submitter and f' by {submitter}'}",
    )
    yield ui.quiet(_describe_cost(store, campaign))
    anchors = [ui.Link("Provenance", "#ran"), ui.Link("Jobs", "#jobs")]
    yield ui.Links([*_list_related_links(store, campaign), *anchors], "Results of the campaign")


def _suggest_rerun(campaign: CampaignRow) -> ui.Titled:
    changed = ""
    if campaign.dirty:
        changed = (
            "The test was submitted with uncommitted changes; this command runs it without them."
        )
    elif not campaign.commit_id:
        changed = "The test was read from a folder that may have changed since."
    return ui.Titled(
        "Run again",
        ui.Paragraph(changed),
        ui.Command(campaign_outcome.rerun_command(campaign)),
        ui.Paragraph("Show the submit descriptions without submitting them:"),
        ui.Command(campaign_outcome.rerun_command(campaign, "render")),
        anchor="again",
    )


def _describe_cost(store: Store, campaign: CampaignRow) -> str:
    """Describe the cost so far and the planned cost, estimated from the cost so far if unknown."""
    used = load_campaign_cost(store, campaign.id)
    estimate = campaign.plan.estimate
    # Tests without a dataset read none.
    planned = describe_amounts(estimate.wall_s, estimate.cpu_s, estimate.read_bytes or None)
    if not used.measurements:
        return f"Planned cost: {planned}." if planned else ""
    if planned:
        return f"Cost: {used}; planned were {planned}."
    share = used.measurements / max(campaign.planned_measurements, 1)
    total = f"; about {used.scale(1 / share)} as planned" if share < 1 else ""
    return f"Cost: {used}{total}."


def _list_progress(campaign: CampaignRow, progress: CampaignProgress) -> Iterator[ui.Section]:
    planned = progress.planned or 1
    yield ui.Paragraph(progress.sentence, role="status")
    yield ui.Progress(progress.count.measured, planned, "measurements recorded")
    if progress.is_finished:
        return
    as_of = progress.as_of_us
    yield ui.quiet(
        "Measurements are counted as they arrive. Job states are as of the last query of the batch "
        f"systems{f'; their latest event is from {format_time(as_of)}' if as_of else ''}. ",
        ui.Code(f"treehammer status {campaign.id} --follow"),
        " updates them.",
    )


class CampaignProgress:
    """Progress of a campaign.

    Attributes:
        count: its jobs and measurements.
        planned: planned measurements; known before the jobs are.
        remaining_s: expected seconds to completion at the current pace, None if unknown.
        as_of_us: latest start or end of a job known from its batch system, None before the first.
    """

    def __init__(self, store: Store, campaign: CampaignRow, count: CampaignCount) -> None:
        self.count = count.total
        self.planned = campaign.planned_measurements or count.total.planned
        # One significant digit: the estimate is not better, and the page should not flicker.
        seconds = count.remaining_s
        self.remaining_s = None if seconds is None else float(f"{seconds:.1g}")
        span = campaign_queries.load_time_span_us(store, campaign.id)
        self.as_of_us = span[1] if span else None

    @property
    def is_finished(self) -> bool:
        """Whether no further measurements are expected."""
        return is_over(self.count.jobs, self.count.measured, self.planned)

    @property
    def sentence(self) -> str:
        """Progress as a sentence."""
        text = f"{replace(self.count, planned=self.planned).describe()}"
        if self.count.superseded:
            superseded = pluralize(self.count.superseded, "measurement")
            text += f"; {superseded} repeated, or to be repeated, by later attempts"
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
        text = f"No known failures, but {missing:,} of {planned} are missing"
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
            "implausible": self.count.implausible,
            "missing": dict(self.count.missing),
            "superseded": self.count.superseded,
            "jobs": dict(self.count.jobs),
            "remaining_s": self.remaining_s,
            "as_of_us": self.as_of_us,
            "over": self.is_finished,
        }


def _list_related_links(store: Store, campaign: CampaignRow) -> Iterator[ui.Link]:
    """Yield links to the campaign's results."""
    filters = {"campaign": campaign.id}
    yield from list_figure_links("campaign", store, filters)
    definition = campaign.plan.definition
    if definition.load and has_page("campaign-load"):
        yield ui.Link("Load", link_to("campaign-load", campaign_id=campaign.id))
    releases = definition.axes.get("root", ())
    if len(releases) > 1:
        sides = {"a": releases[0], "b": releases[-1]}
        title = f"{sides['b']} compared with {sides['a']}"
        yield ui.Link(title, link_to("compare", query={**sides, **filters}))
    yield ui.Link("ROOT file", link_to("rootfile", query=filters))


def _describe_provenance(store: Store, campaign: CampaignRow) -> Iterator[tuple[str, str]]:
    """Describe the origin of the test, and the parameters of the plan."""
    yield "campaign", campaign.id
    ref_text = f" at {campaign.ref}" if campaign.ref else ""
    yield "repository", f"{campaign.repository}{ref_text}"
    dirty = ", with uncommitted changes" if campaign.dirty else ""
    yield "commit", (campaign.commit_id or "none (not from a repository)") + dirty
    yield "test", f"{campaign.test_name} ({campaign.test_path})"
    yield "description", campaign.plan.definition.description or "none"
    # Measurements report the hashes of datasets.
    datasets = campaign_queries.list_datasets(store, campaign.id)
    names = ", ".join(f"{name} ({hash_})" if hash_ else name for name, hash_ in datasets)
    if dataset := names or campaign.plan.definition.dataset:
        yield "dataset", dataset
    yield from _describe_plan(campaign.plan, has_datasets=bool(datasets))


def _describe_plan(plan: CampaignPlan, *, has_datasets: bool) -> Iterator[tuple[str, str]]:
    """Describe the sites, templates and parameters of a plan."""
    definition = plan.definition
    yield from _describe_choices("excluded", plan.excluded)
    yield from _describe_choices("included", plan.included)
    for site, template in plan.templates.items():
        yield f"template at {site}", template
    for axis, values in definition.axes.items():
        if axis != "dataset" or not has_datasets:
            yield axis, ", ".join(map(str, values))
    for name in ("bundle", "repeats", "rounds", "passes", "seed"):
        value = getattr(definition, name)
        if value not in (None, ()):
            yield name, ", ".join(value) if isinstance(value, tuple) else str(value)


def _describe_choices(name: str, reasons: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Describe why sites and doors were excluded or included."""
    for label, reason in reasons.items():
        kind = "door" if split_door_label(label)[1] else "site"
        yield f"{name} {kind} {label}", reason
