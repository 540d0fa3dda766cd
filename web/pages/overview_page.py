"""Overview: sites by day, changes since yesterday, latest verdicts, running campaigns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import Field

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.conclusion import (
    count_headline,
    describe_headline,
    select_headline,
)
from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
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
from treehammer.sql.read.query_model import FigureQuery
from treehammer.sql.read.stored_comparisons import ComparisonSummary
from treehammer.sql.watch.state_history import CENTRAL, list_standing_states
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to, link_to_same_page
from treehammer.web.columns import column, columns, outcome_columns, outcome_counts
from treehammer.web.display_formats import (
    day_from_number,
    day_number,
    days_until,
    format_day,
    format_time,
    today,
)
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import OneOf, WindowQuery
from treehammer.web.pages.common_tables import (
    DEFAULT_METRIC,
    build_states_table,
    campaign_table,
    comparison_columns,
    describe_comparison,
    index_by_site,
    load_campaign_names,
    split_by_scope,
)
from treehammer.web.pages.overview_changes import (
    LOOKBACK_DAYS,
    MAX_CHANGES,
    ChangeSentence,
    changes_since_yesterday,
)
from treehammer.web.pages.overview_tiles import (
    EFFICIENCY_DAYS,
    SiteRow,
    build_tiles,
    choose_letter,
    load_site_days,
    load_storage_days,
    make_day_table,
    make_efficiency_column,
    make_good_column,
    make_state_column,
    select_days,
    sort_by_state,
    sort_worst_first,
    tile_of_slowest,
)

#: Default number of days in the matrix, and those to choose from.
DAYS, CHOICES = 14, (7, 14, 30, 60)
#: Seconds between two refreshes of the tiles.
REFRESH_INTERVAL_S = 60
#: Latest comparisons shown.
MAX_COMPARISONS = 5
#: Sites and campaigns listed by name; further ones are counted.
MAX_NAMED_SITES = 10

#: Columns by which days are shown, with the words for them.
SITE_KINDS = {JOB_SITE: "site of the jobs", STORAGE_SITE: "site of the storage"}

#: States that a day can have.
_SHOWN_STATES = (SiteState.OK, SiteState.WARNING, SiteState.CRITICAL, SiteState.UNKNOWN)


class OverviewQuery(WindowQuery):
    """Parameters of the overview."""

    days: Annotated[int, OneOf(CHOICES)] = Field(DAYS, description="Number of days.")
    by: Annotated[str, OneOf(tuple(SITE_KINDS))] = Field(
        JOB_SITE,
        description="Sites of the table site_days: those of the jobs, or those of the storage.",
    )


@page(
    "/",
    "overview",
    OverviewQuery,
    menu="Overview",
    position=10,
    api=PageOperation(
        "getOverview",
        "Running campaigns, latest verdicts, sites by day",
        {
            "site_days": "sites and days",
            "running": "campaigns with unfinished jobs",
            "verdicts": "the latest comparisons",
            "storage_days": "storages and days with load tests, with their status",
            "states": "current states of sites and storages",
        },
        ("changes",),
        path="/overview",
    ),
)
def overview_page(request: PageRequest[OverviewQuery]) -> PageContent:
    """Show what is wrong, what changed, and what runs."""
    store, query = request.store, request.query
    days, by = query.window, query.by
    lines, recent = _load_days(store, days, by)
    storages = load_storage_days(store, days)
    states = list_standing_states(store)
    current = index_by_site(states, by)
    active = overview_queries.list_active_campaigns(store, OPEN_JOB_STATES)
    running = campaign_table("running", "Campaigns with active jobs", active)
    latest = stored_comparisons.list_latest_comparisons(store, MAX_COMPARISONS)
    verdicts = _verdict_table(store, latest)
    # The name of a storage need not be that of a site with jobs.
    is_storage = storages or by == STORAGE_SITE
    linked = {*overview_queries.list_sites(store)} if is_storage else None
    named = MAX_NAMED_SITES if request.is_html else None
    of_jobs = index_by_site(states, JOB_SITE)
    changes = changes_since_yesterday(store, recent, of_jobs, today(), named)
    tables = (
        _site_day_table(() if request.is_html else lines),
        running,
        verdicts,
        _storage_day_table(storages),
        build_states_table(sort_by_state(states)),
    )
    efficiencies = _compare_efficiencies(store) if request.is_html and by == JOB_SITE else {}
    inefficient = list(peer_comparison.find_inefficient_sites(efficiencies))
    worst_first = sort_worst_first(lines, current, inefficient)
    matrix = _make_matrix(worst_first, days, by, current, linked, efficiencies)
    central = [row for row in states if row.subject_kind == CENTRAL]
    board = ui.Group(
        f"board{' stacked-board' if len(days) > 14 else ''}",
        ui.Titled(
            "Sites by day",
            ui.Form(query.list_inputs(to=None, days=(), by=SITE_KINDS)),
            *map(_describe_central, central),
            *_show_matrix(store, query, matrix, lines, tables[0], has_states=bool(current)),
            anchor="days",
        ),
        ui.Group("", *_show_news(changes, _fold_verdicts(verdicts, latest), running)),
    )
    storage_table = make_day_table(
        "storages",
        "Status of each storage by day, from load tests",
        storages,
        days,
        _make_explore_linker("campaign_id"),
        site_address=_make_site_linker(linked),
    )
    sections = (
        ui.Live(
            ui.Paragraph(f"As of {format_time(time.time_ns() // 1000)}", look="quiet under"),
            ui.Tiles(
                build_tiles(
                    lines,
                    current,
                    inefficient,
                    active,
                    _tile_of_slowest(verdicts, latest),
                    _sum_hours(store),
                )
            ),
            address=link_to_same_page(),
            every_s=REFRESH_INTERVAL_S,
        )
        if request.is_html
        else None,
        _link_figures(),
        board,
        ui.Titled(
            "Storages under load",
            ui.TableSection(storage_table, "newest", tables[3]),
            ui.quiet(load_operations_rule().describe()),
            anchor="storages",
        )
        if storages
        else None,
    )
    about = {"changes": [change.text for change in changes]}
    return PageContent("Overview", sections, tables, about)


def _compare_efficiencies(store: Store) -> Mapping[str, PeerComparison]:
    """Compare the CPU efficiency of each site with similar sites over the last days."""
    metric = DEFAULT_METRIC
    return peer_comparison.compare_sites_since(store, [metric], _first_recent_day())[metric]


def _sum_hours(store: Store) -> float:
    """Add up the wall time of the good executions of the last days, in hours."""
    metrics = ("setup_wall_s", "stagein_wall_s", "payload_wall_s")
    query = FigureQuery(metrics, (), first_day=_first_recent_day(), kind=None)
    groups = store.fetch_figure(query).groups
    return sum(moments.total for group in groups for moments in group.metrics.values()) / 3600


def _first_recent_day() -> int:
    return day_number(days_until(today(), EFFICIENCY_DAYS)[0])


def _link_figures() -> ui.Links:
    trend = {"by": "day", "color": "site", "view": "relative"}
    return ui.Links(
        [
            ui.Link("CPU efficiency by site (study S0)", link_to("s0")),
            ui.Link("Trend by day", link_to("explore", query=trend)),
            ui.Link(
                "Read latency by site",
                link_to("explore", query={"by": "site", "view": "latency"}),
            ),
        ],
        "Figures",
    )


def _describe_central(event: StatusChangeRow) -> ui.Paragraph:
    return ui.headline(
        ui.Badge("warning"),
        f" Central since {format_time(event.since_us)}: {event.reason}. No site is excluded for it (",
        ui.Link("evidence", link_to("state-change", change=event.id)),
        ").",
    )


def _show_matrix(
    store: Store,
    query: OverviewQuery,
    matrix: DataTable,
    lines: Sequence[SiteRow[DayOutcomes]],
    exported: DataTable,
    *,
    has_states: bool,
) -> Iterator[ui.Section]:
    """Show the table of sites by day with its legend and rule, or when the last measurements were."""
    if not matrix.rows:
        newest = overview_queries.find_last_day(store)
        if not newest:
            yield ui.Paragraph("No measurements yet.")
            return
        day = day_from_number(newest)
        link = ui.Link(format_day(day), link_to_same_page(to=day))
        yield ui.Paragraph("No measurements in this period. The last ones are from ", link, ".")
        return
    yield ui.TableSection(matrix, "newest", exported)
    yield ui.Legend(
        [(ui.Badge(choose_letter(state), state.value), state.value) for state in _SHOWN_STATES]
    )
    evaluated = (" The state is that of the ", ui.Link("last evaluation", link_to("sites")), ".")
    yield ui.quiet(
        f"{describe_daily_rule()} Jobs without any measurement are not counted.",
        *(evaluated if has_states else ()),
    )
    silent = sorted({*overview_queries.list_sites(store, query.by)} - {line.site for line in lines})
    if silent:
        yield ui.quiet(f"Sites without measurements in this period: {_name_sites(silent)}.")


def _show_news(
    changes: Sequence[ChangeSentence], verdicts: DataTable, running: DataTable
) -> Iterator[ui.Section]:
    """Show what changed, the latest comparisons and what runs, each with how to start."""
    yield ui.Titled(
        "Since yesterday",
        ui.Bullets([change.paragraph for change in changes], limit=MAX_CHANGES)
        or ui.Paragraph("No measurements or submissions since yesterday."),
        anchor="changes",
    )
    compare = (
        ui.Paragraph("No comparisons yet. Compare two measured releases:"),
        ui.Command("treehammer compare 6.38.00 6.40.00"),
    )
    yield ui.Titled(
        "Latest verdicts", *([verdicts] if verdicts.rows else compare), anchor="verdicts"
    )
    counted = ui.quiet(
        "Measurements are counted as they arrive. Job states are as of the last ",
        ui.Code("treehammer status"),
        " or ",
        ui.Code("collect"),
        ".",
    )
    submit = (
        ui.Paragraph("Nothing is running. Start a campaign:"),
        ui.Command("treehammer submit ttree-read --wait"),
    )
    yield ui.Titled(
        "Running campaigns", *((running, counted) if running.rows else submit), anchor="running"
    )


def _make_matrix(
    lines: Sequence[SiteRow[DayOutcomes]],
    days: Sequence[date],
    by: str,
    states: Mapping[str, StatusChangeRow],
    linked: Collection[str] | None,
    efficiencies: Mapping[str, PeerComparison],
) -> DataTable:
    """Make the table of sites by day; the column of states only after an evaluation."""
    listed = [make_state_column(states)] if states else []
    if efficiencies:
        outliers = peer_comparison.find_inefficient_sites(efficiencies)
        listed.append(make_efficiency_column(efficiencies, outliers))
    return make_day_table(
        "days",
        "Status of each site by day",
        lines,
        days,
        _make_cell_linker(days, by),
        [*listed, make_good_column()],
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
    listed = (*columns("site", "day", "status"), *outcome_columns())
    return DataTable("site_days", "Sites by day", listed, rows)


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
    listed = tuple(TableColumn(key, key) for key in keys)
    return DataTable("storage_days", "Storages under load by day", listed, rows)


def _tile_of_slowest(verdicts: DataTable, latest: Sequence[ComparisonSummary]) -> ui.Tile | None:
    titles = {row["comparison_id"]: row["compared"] for row in verdicts.rows}
    return tile_of_slowest(latest, lambda summary: titles[summary.first_verdict.comparison_id])


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
    listed = (
        *comparison_columns(),
        TableColumn("metric", "time", verdict_text.title_metric),
        *hidden_columns("headline", "over_sites", "by_site", "largest"),
        column("judged_us"),
    )
    return DataTable("verdicts", f"Latest {MAX_COMPARISONS} comparisons", listed, rows)


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
    listed = (
        replace(compared, detail=lambda row: f"judged {format_time(row['judged_us'])}"),
        *hidden,
        TableColumn("headline", "variants", is_long=True, detail=lambda row: row["largest"]),
    )
    return replace(verdicts, columns=listed, rows=rows, is_arrangeable=False)


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
