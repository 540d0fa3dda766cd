"""Overview: running campaigns, changes since yesterday, latest verdicts, daily site status, search.

The search finds a site, campaign, job, host, ROOT release or test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.conclusion import (
    count_headline,
    describe_headline,
    select_headline,
)
from treehammer.analysis.statistics.verdict import CERTAIN_VERDICTS
from treehammer.analysis.status.load_tests import StorageDay
from treehammer.analysis.status.rule_judgements import DayOutcomes, describe_daily_rule
from treehammer.analysis.status.status_rules import load_operations_rule
from treehammer.analysis.status.subject_state import SiteState
from treehammer.collectors.job_spec import OPEN_JOB_STATES
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read import overview_queries, stored_comparisons
from treehammer.sql.read.overview_queries import JOB_SITE, STORAGE_SITE
from treehammer.sql.read.reader import MAX_HITS, HitKind, SearchHit, search_names
from treehammer.sql.read.stored_comparisons import ComparisonSummary
from treehammer.sql.watch.state_history import CENTRAL, list_standing_states
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import format_counts
from treehammer.web.addresses import HTML, link_to, requested_format, wants_html
from treehammer.web.display_formats import (
    day_from_number,
    days_until,
    format_day,
    format_time,
    today,
)
from treehammer.web.figures.explore_query import RELATIVE
from treehammer.web.page_query import OneOf, PageOperation, PageQuery, Text, WindowQuery
from treehammer.web.page_service import PageContext, PageModule, PageView
from treehammer.web.pages.common_tables import (
    DEFAULT_METRIC,
    build_states_table,
    campaign_table,
    comparison_columns,
    describe_comparison,
    index_by_site,
    load_campaign_names,
    make_state_column,
    outcome_counts,
    split_by_scope,
)
from treehammer.web.pages.overview_changes import (
    LOOKBACK_DAYS,
    MAX_CHANGES,
    changes_since_yesterday,
)
from treehammer.web.pages.overview_tiles import (
    SiteRow,
    Tile,
    build_tiles,
    load_site_days,
    load_storage_days,
    make_day_table,
    make_good_column,
    select_days,
    sort_by_state,
    sort_worst_first,
    tile_of_comparison,
)

#: Default number of days in the matrix, and those to choose from.
DAYS, CHOICES = 14, (7, 14, 30, 60)
#: Latest comparisons shown.
MAX_COMPARISONS = 5
#: Sites and campaigns listed by name; further ones are counted.
MAX_NAMED_SITES = 10

#: Columns by which days are shown, with the words for them.
SITE_KINDS = {JOB_SITE: "site of the jobs", STORAGE_SITE: "site of the storage"}

#: States that a day can have.
_SHOWN_STATES = (SiteState.OK, SiteState.WARNING, SiteState.CRITICAL, SiteState.UNKNOWN)
#: Kind -> column by which Explore shows it; the others have pages of their own.
_EXPLORED = {HitKind.HOST: "host", HitKind.RELEASE: "axis_root", HitKind.TEST: "test_name"}


class OverviewQuery(WindowQuery):
    """Parameters of the overview."""

    days: Annotated[int, OneOf(CHOICES)] = Field(DAYS, description="Number of days.")
    by: Annotated[str, OneOf(tuple(SITE_KINDS))] = Field(
        JOB_SITE,
        description="Sites of the table site_days: those of the jobs, or those of the storage.",
    )


class SearchQuery(PageQuery):
    """Parameters of the search."""

    q: Text = Field("", description="Part of a name, or beginning of an identity.")


#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/overview",
        "getOverview",
        "overview",
        "Running campaigns, latest verdicts, sites by day",
        {
            "site_days": "sites and days",
            "running": "campaigns with unfinished jobs",
            "verdicts": "the latest comparisons",
            "storage_days": "storages and days with load tests, with their status",
            "states": "current states of sites and storages",
        },
        OverviewQuery,
        ("changes",),
    ),
    PageOperation(
        "/search",
        "searchNames",
        "search",
        "Sites, campaigns, jobs, hosts, ROOT releases and tests by name",
        {"hits": "names that were found, at most 20 of each kind"},
        SearchQuery,
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the overview and of the search."""
    return [
        context.page_route("/", overview_view, "overview"),
        context.page_route("/search", search_view, "search"),
    ]


PAGES = PageModule(routes, position=10, menu={"overview": "Overview"}, operations=OPERATIONS)


def overview_view(store: Store, request: Request) -> PageView:
    """Collect the data of the overview."""
    query = OverviewQuery.parse(request)
    days, by = query.window, query.by
    is_page = requested_format(request) == HTML
    lines, recent = _load_days(store, days, by)
    storages = load_storage_days(store, days)
    states = list_standing_states(store)
    current = index_by_site(states, by)
    active = overview_queries.list_active_campaigns(store, OPEN_JOB_STATES)
    running = campaign_table("running", "Campaigns with active jobs", active)
    latest = stored_comparisons.list_latest_comparisons(store, MAX_COMPARISONS)
    verdicts = _verdict_table(store, latest)
    latest_tile = _tile_of_latest(verdicts, latest)
    storage_days = _storage_day_table(storages)
    # The name of a storage need not be that of a site with jobs.
    is_storage = storages or by == STORAGE_SITE
    linked = {*overview_queries.list_sites(store)} if is_storage else None
    values = {
        "now": time.time_ns() // 1000,
        "tiles": build_tiles(lines, current, active, latest_tile),
        "running": running,
        "changes": changes_since_yesterday(
            store,
            recent,
            index_by_site(states, JOB_SITE),
            today(),
            MAX_NAMED_SITES if is_page else None,
        ),
        "max_changes": MAX_CHANGES,
        "verdicts": _fold_verdicts(verdicts, latest),
        **_matrix_values(store, query, lines),
        "form": query.list_inputs(to=None, days=(), by=SITE_KINDS),
        "matrix": _make_matrix(sort_worst_first(lines, current), days, by, current, linked),
        "states": current,
        "central": [row for row in states if row.subject_kind == CENTRAL],
        "storage_days": storage_days,
        "storage_matrix": make_day_table(
            "storages",
            "Status of each storage by day, from load tests",
            storages,
            days,
            _make_explore_linker("campaign_id"),
            site_address=_make_site_linker(linked),
        ),
        "storage_rule": load_operations_rule().describe(),
    }
    tables = (
        _site_day_table(() if is_page else lines),
        running,
        verdicts,
        storage_days,
        build_states_table(sort_by_state(states)),
    )
    return PageView("overview.html.j2", "Overview", values, tables)


def _matrix_values(
    store: Store, query: OverviewQuery, lines: Sequence[SiteRow[DayOutcomes]]
) -> dict[str, Any]:
    """Collect the head and legend of the matrix of sites by day."""
    newest = overview_queries.find_last_day(store)
    quiet = sorted({*overview_queries.list_sites(store, query.by)} - {line.site for line in lines})
    return {
        "count": len(query.window),
        "newest": day_from_number(newest) if newest else None,
        "format_day": format_day,
        "quiet": _name_sites(quiet),
        "rule": describe_daily_rule(),
        "statuses": _SHOWN_STATES,
    }


def _make_matrix(
    lines: Sequence[SiteRow[DayOutcomes]],
    days: Sequence[date],
    by: str,
    states: Mapping[str, StatusChangeRow],
    linked: Collection[str] | None,
) -> DataTable:
    """Make the table of sites by day; the column of states only after an evaluation."""
    return make_day_table(
        "days",
        "Status of each site by day",
        lines,
        days,
        _make_cell_linker(days, by),
        [*([make_state_column(states)] if states else []), make_good_column()],
        _make_site_linker(linked),
    )


def _make_site_linker(linked: Collection[str] | None) -> Callable[[str], str]:
    """Link a site to its page, if it is one of those given; None links all that have a name."""

    def link(site: str) -> str:
        has_page = site and (linked is None or site in linked)
        return link_to("site", site=site) if has_page else ""

    return link


def _make_cell_linker(days: Sequence[date], by: str) -> Callable[[SiteRow[DayOutcomes], date], str]:
    """Link a site's day: to its page, or of a storage site to the sites that read it."""
    if by == STORAGE_SITE:
        return _make_explore_linker(JOB_SITE)
    addresses = {day: link_to("day", day=day) for day in days}
    return lambda line, day: f"{addresses[day]}?{line.query_string}"


def _make_explore_linker(by: str) -> Callable[[SiteRow[Any], date], str]:
    """Link a storage's day to its measurements in Explore, grouped by a column."""
    explore = link_to("explore")

    def link_to_measurements(line: SiteRow[Any], day: date) -> str:
        query = {"metric": DEFAULT_METRIC, "by": by, "from": day, "to": day}
        return f"{explore}?{urlencode({**query, 'where': f'{STORAGE_SITE}={line.site}'})}"

    return link_to_measurements


def _load_days(
    store: Store, days: Sequence[date], by: str
) -> tuple[list[SiteRow[DayOutcomes]], list[SiteRow[DayOutcomes]]]:
    """Load the shown days, and those of the sites of jobs in which changes are searched."""
    recent = days_until(today(), LOOKBACK_DAYS)
    if by == JOB_SITE and recent[0] <= days[-1] <= recent[-1]:
        # Days of both windows are read once.
        all_days = sorted({*days, *recent})
        both = load_site_days(store, all_days, by)
        return select_days(both, days), select_days(both, recent)
    return load_site_days(store, days, by), load_site_days(store, recent)


def _site_day_table(lines: Sequence[SiteRow[DayOutcomes]]) -> DataTable:
    rows = [
        {
            "site": line.site,
            "day": cell.day.isoformat(),
            "status": cell.judged.status.value,
            **outcome_counts(cell.judged),
        }
        for line in lines
        for cell in line.cells
    ]
    keys = ("site", "day", "status", "good", "failed", "implausible", "not_supported")
    return DataTable(
        "site_days", "Sites by day", tuple(TableColumn(key, key) for key in keys), rows
    )


def _storage_day_table(lines: Sequence[SiteRow[StorageDay]]) -> DataTable:
    rows = [
        {"storage_site": line.site, "day": cell.day.isoformat(), **cell.judged.as_dict()}
        for line in lines
        for cell in line.cells
        if cell.judged.total
    ]
    keys = (
        "storage_site",
        "day",
        *StorageDay.from_operations((), load_operations_rule()).as_dict(),
    )
    columns = tuple(TableColumn(key, key) for key in keys)
    return DataTable("storage_days", "Storages under load by day", columns, rows)


def _tile_of_latest(verdicts: DataTable, latest: Sequence[ComparisonSummary]) -> Tile | None:
    if not latest:
        return None
    row = verdicts.rows[0]
    address = link_to("comparison", comparison=row["comparison_id"])
    return tile_of_comparison(latest[0], row["compared"], address)


def _verdict_table(store: Store, latest: Sequence[ComparisonSummary]) -> DataTable:
    """Build the table of comparisons: one row per metric, with the largest certain effect."""
    names = load_campaign_names(store, (comparison.first_verdict for comparison in latest))
    certain = {
        comparison.first_verdict.comparison_id: [
            count
            for count in select_headline(comparison.counts)
            if count.verdict in CERTAIN_VERDICTS
        ]
        for comparison in latest
    }
    largest = stored_comparisons.find_largest_effects(store, certain)
    rows = [
        _verdict_row(comparison, metric, names, largest)
        for comparison in latest
        for metric in comparison.verdict_counts
    ]
    columns = (
        *comparison_columns(),
        TableColumn("metric", "time", verdict_text.title_metric),
        TableColumn("headline", "variants, in the widest scope with a verdict", is_long=True),
        TableColumn("over_sites", "variants over all sites", format_counts, is_long=True),
        TableColumn("by_site", "variants by site", format_counts, is_long=True),
        TableColumn("largest", "largest certain effect", is_long=True),
        TableColumn("judged_us", "judged", format_time),
    )
    return DataTable("verdicts", f"Latest {MAX_COMPARISONS} comparisons", columns, rows)


def _fold_verdicts(verdicts: DataTable, latest: Sequence[ComparisonSummary]) -> DataTable:
    """Fold the rows of a comparison, of one metric each, into one for readers."""
    folded: dict[str, list[Row]] = {}
    for row in verdicts.rows:
        folded.setdefault(row["comparison_id"], []).append(row)
    rows = [
        {
            **folded[comparison.first_verdict.comparison_id][0],
            "headline": describe_headline(count_headline(comparison.counts)),
        }
        for comparison in latest
    ]
    compared, *hidden = comparison_columns()
    columns = (
        replace(compared, detail=lambda row: f"judged {format_time(row['judged_us'])}"),
        *hidden,
        TableColumn("headline", "variants", is_long=True, detail=lambda row: row["largest"]),
    )
    return replace(verdicts, columns=columns, rows=rows, is_arrangeable=False)


def _verdict_row(
    comparison: ComparisonSummary,
    metric: str,
    names: Mapping[str, str],
    largest: Mapping[tuple[str, str], VerdictRow],
) -> dict[str, Any]:
    first = comparison.first_verdict
    by_site, over_sites = split_by_scope(comparison.verdict_counts[metric])
    return {
        **describe_comparison(first, names),
        "metric": metric,
        "headline": describe_headline({metric: count_headline(comparison.counts)[metric]}),
        "over_sites": over_sites,
        "by_site": by_site,
        "largest": _format_verdict(largest.get((first.comparison_id, metric))),
    }


def _format_verdict(row: VerdictRow | None) -> str:
    if row is None:
        return "none"
    return f"{row.label}: {verdict_text.describe_verdict(row)}"


def _name_sites(sites: Sequence[str]) -> str:
    remainder = f" and {len(sites) - MAX_NAMED_SITES} more" if len(sites) > MAX_NAMED_SITES else ""
    return ", ".join(sites[:MAX_NAMED_SITES]) + remainder


def search_view(store: Store, request: Request) -> PageView | Response:
    """Collect the hits; browsers are led to the page of a single one."""
    text = SearchQuery.parse(request).q.strip()[:200]
    hits = search_names(store, text)
    if len(hits) == 1 and wants_html(request):
        return RedirectResponse(_link_to_hit(hits[0]))
    columns = (
        TableColumn("kind", "kind"),
        TableColumn("name", "name", is_long=True, link=lambda row: str(row["address"])),
        *hidden_columns("identity", "address"),
    )
    rows = [
        {
            "kind": hit.kind.value,
            "name": hit.name,
            "identity": hit.identity,
            "address": _link_to_hit(hit),
        }
        for hit in hits
    ]
    table = DataTable(
        "hits",
        f"At most {MAX_HITS} of each kind",
        columns,
        rows,
        "Nothing found. Sites, hosts, releases, tests and campaigns are found by any part of their "
        "names, jobs and campaigns by the beginning of their identity.",
    )
    title = f"Search: {text}" if text else "Search"
    return PageView("search.html.j2", title, {"hits": table, "searched": text}, (table,))


def _link_to_hit(hit: SearchHit) -> str:
    match hit.kind:
        case HitKind.SITE:
            return link_to("site", site=hit.identity)
        case HitKind.CAMPAIGN:
            return link_to("campaign", campaign_id=hit.identity)
        case HitKind.JOB:
            return link_to("job", job_id=hit.identity)
    query = {"by": "day", "view": RELATIVE, _EXPLORED[hit.kind]: hit.identity}
    return link_to("explore", query=query)
