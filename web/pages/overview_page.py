"""Overview: key numbers, sites by day, changes, latest verdicts, running campaigns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Protocol
from urllib.parse import urlencode

from pydantic import Field

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.conclusion import (
    count_headline,
    count_slower,
    describe_headline,
    select_headline,
)
from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.statistics.verdict import CERTAIN_VERDICTS
from treehammer.analysis.status.day_outcomes import DAY_GRADES, DayOutcomes, describe_daily_rule
from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.read import overview_queries, stored_comparisons
from treehammer.sql.read.overview_queries import JOB_SITE, STORAGE_SITE
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import join_names
from treehammer.verticals import import_parts
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to, link_to_same_page
from treehammer.web.columns import column, columns, outcome_columns, outcome_counts
from treehammer.web.display_formats import (
    day_from_number,
    days_until,
    format_time,
    today,
)
from treehammer.web.figure_links import list_figure_links, make_figure_linker
from treehammer.web.page import PageContent, PageOperation, PageRequest, list_part_tables, page
from treehammer.web.page_query import OneOf, WindowQuery
from treehammer.web.pages import common_tables, overview_days

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


class OverviewPart(Protocol):
    """What a vertical shows below the sites by day; its module has the names of the ``TABLES``."""

    @property
    def has_data(self) -> bool:
        """Whether there is anything to show."""

    @property
    def table(self) -> DataTable:
        """Its table for export."""

    def show(
        self,
        address: Callable[[overview_days.SiteDays[Any], date], str],
        site_address: Callable[[str], str],
    ) -> ui.Section:
        """Show it; ``address`` leads to the measurements of a storage and day."""


class OverviewStates(Protocol):
    """What ``page_parts`` of a vertical shows of the current states of sites."""

    table: DataTable
    current: Mapping[str, SiteState]
    #: Explanations of failures, by site of the jobs.
    explanations: Mapping[str, str]

    def make_column(self) -> TableColumn:
        """Make the column of the current state of each site."""

    def show_central(self) -> Iterator[ui.Section]:
        """Show the events that concern most sites at once."""

    def show_news(self) -> ui.Section:
        """Link to news of more than a day."""


SiteLines = list[overview_days.SiteDays[DayOutcomes]]


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
    reads_measurements=False,
    api=PageOperation(
        "getOverview",
        "Running campaigns, latest verdicts, sites by day",
        {
            "site_days": "sites and days",
            "running": "campaigns with unfinished jobs",
            "verdicts": "the latest comparisons",
            **list_part_tables("overview"),
            **list_part_tables("page_parts", "OVERVIEW_TABLES"),
        },
        ("changes",),
        path="/overview",
    ),
)
def overview_page(request: PageRequest[OverviewQuery]) -> PageContent:
    """Show what is wrong, what changed, and what runs."""
    overview = Overview(request.store, request.query, is_html=request.is_html)
    about = {"changes": [change.text for change in overview.changes]}
    tables = (
        _build_site_day_table(() if request.is_html else overview.lines),
        overview.running,
        overview.verdicts,
        *(part.table for part in overview.parts),
        *(states.table for states in overview.states),
    )
    if not request.is_html:
        return PageContent("Overview", (), tables, about)
    board = ui.Group(
        f"board{' stacked-board' if len(request.query.window) > 14 else ''}",
        ui.Titled("Sites by day", *_show_matrix(overview, tables[0]), anchor="days"),
        ui.Group("", *_show_news(overview)),
    )
    sections = (
        ui.Live(
            ui.Paragraph(f"As of {format_time(current_us())}", look="quiet under"),
            ui.Tiles(list(_list_tiles(overview))),
            address=link_to_same_page(),
            every_s=REFRESH_INTERVAL_S,
        ),
        ui.Links(list_figure_links("overview", request.store, {}), "Figures"),
        board,
        *(
            part.show(_make_storage_linker("campaign_id"), overview.site_address)
            for part in overview.parts
            if part.has_data
        ),
    )
    return PageContent("Overview", sections, tables, about)


class Overview:
    """Data of the overview; what only the page shows is loaded for it."""

    def __init__(self, store: Store, query: OverviewQuery, *, is_html: bool) -> None:
        self.store, self.query = store, query
        self.parts: list[OverviewPart] = [
            part.OverviewPart(store, query.window) for part in import_parts("overview")
        ]
        self.states: list[OverviewStates] = [
            part.OverviewStates(store, query.by) for part in import_parts("page_parts")
        ]
        #: Current states by site.
        self.current = {k: v for states in self.states for k, v in states.current.items()}
        self.active = overview_queries.list_active_campaigns(store)
        self.running = common_tables.campaign_table(
            "running", "Campaigns with active jobs", self.active
        )
        self.latest = stored_comparisons.list_latest_comparisons(store, MAX_COMPARISONS)
        self.described = common_tables.describe_comparisons(store, self.latest)
        self.lines, recent = self._load_days()
        explanations = {k: v for states in self.states for k, v in states.explanations.items()}
        limit = MAX_NAMED_SITES if is_html else None
        self.changes = list(
            overview_days.changes_since_yesterday(store, recent, explanations, today(), limit)
        )

    def _load_days(self) -> tuple[SiteLines, SiteLines]:
        """Load the shown days, and those of the sites of jobs in which changes are searched."""
        days, recent = self.query.window, days_until(today(), overview_days.LOOKBACK_DAYS)
        if self.query.by == JOB_SITE and recent[0] <= days[-1] <= recent[-1]:
            # Days of both windows are read once.
            both = overview_days.load_site_days(self.store, sorted({*days, *recent}))
            return overview_days.select_days(both, days), overview_days.select_days(both, recent)
        lines = overview_days.load_site_days(self.store, days, self.query.by)
        return lines, overview_days.load_site_days(self.store, recent)

    @cached_property
    def efficiencies(self) -> dict[str, peer_comparison.PeerComparison]:
        """CPU efficiency of each site, compared with similar sites over the last days."""
        if self.query.by != JOB_SITE:
            return {}
        metric = common_tables.DEFAULT_METRIC
        return peer_comparison.compare_all_sites(self.store, [metric], today())[metric]

    @cached_property
    def inefficient(self) -> list[str]:
        """Sites with a lower CPU efficiency than similar ones, the lowest first."""
        return list(peer_comparison.find_inefficient_sites(self.efficiencies))

    @cached_property
    def verdicts(self) -> DataTable:
        """Latest comparisons: one row per metric, with the largest certain effect."""
        certain = {
            summary.first_verdict.comparison_id: [
                count
                for count in select_headline(summary.counts)
                if count.verdict in CERTAIN_VERDICTS
            ]
            for summary in self.latest
        }
        largest = stored_comparisons.find_largest_effects(self.store, certain)
        rows = []
        for described, summary in zip(self.described, self.latest, strict=True):
            headline = count_headline(summary.counts)
            for metric, scopes in summary.verdict_counts.items():
                by_site, over_sites = common_tables.split_by_scope(scopes)
                effect = largest.get((described["comparison_id"], metric))
                text = (
                    f"{effect.label}: {verdict_text.describe_verdict(effect)}" if effect else "none"
                )
                values = {
                    "metric": metric,
                    "headline": describe_headline({metric: headline[metric]}),
                    "over_sites": over_sites,
                    "by_site": by_site,
                    "largest": text,
                }
                rows.append({**described, **values})
        table_columns = (
            *common_tables.comparison_columns(),
            TableColumn("metric", "time", verdict_text.title_metric),
            *hidden_columns("headline", "over_sites", "by_site", "largest"),
            column("judged_us"),
        )
        return DataTable("verdicts", f"Latest {MAX_COMPARISONS} comparisons", table_columns, rows)

    @property
    def folded_verdicts(self) -> DataTable:
        """Latest comparisons, one row each."""
        first_rows: dict[str, Row] = {}
        for row in self.verdicts.rows:
            first_rows.setdefault(row["comparison_id"], row)
        rows = [
            {**first_rows[row["comparison_id"]], "headline": row["headline"]}
            for row in self.described
        ]
        compared, *hidden = common_tables.comparison_columns()
        table_columns = (
            replace(compared, detail=lambda row: f"judged {format_time(row['judged_us'])}"),
            *hidden,
            TableColumn("headline", "verdicts", is_long=True, detail=lambda row: row["largest"]),
        )
        return replace(self.verdicts, columns=table_columns, rows=rows, is_arrangeable=False)

    @cached_property
    def site_address(self) -> Callable[[str], str]:
        """Link a site to its page; the name of a storage need not be that of a site with jobs."""
        is_storage = any(part.has_data for part in self.parts) or self.query.by == STORAGE_SITE
        linked = {*overview_queries.list_sites(self.store)} if is_storage else None

        def link(site: str) -> str:
            has_page = site and (linked is None or site in linked)
            return link_to("site", site=site) if has_page else ""

        return link


def _list_tiles(overview: Overview) -> Iterator[ui.Tile]:
    """Count bad and inefficient sites, failures, slower variants and running work."""
    yield from _count_states(overview)
    if names := overview.inefficient:
        text = f"less CPU efficiency than similar sites: {join_names(names)}"
        yield ui.Tile(str(len(names)), text, link_to("site", site=names[0]), "warning")
    if overview.latest:
        yield _count_slower_variants(overview)
    yield _count_running(overview)


def _count_states(overview: Overview) -> Iterator[ui.Tile]:
    """Count sites in bad states and in downtimes, and failures; nothing without sites."""
    bad_states = (SiteState.CRITICAL, SiteState.WARNING)
    if overview.current:
        names = overview_queries.list_sites(overview.store, overview.query.by)
        states = [overview.current.get(site, SiteState.UNKNOWN) for site in names]
        texts = dict(zip(bad_states, ("sites critical", "sites with warnings"), strict=True))
    else:
        states = [line.latest.status for line in overview.lines]
        texts = {state: f"sites {DAY_GRADES[state]} on their latest day" for state in bad_states}
    if not states:
        return
    for state, text in texts.items():
        count = states.count(state)
        css_class = state.value if count else ""
        yield ui.Tile(f"{count:,} of {len(states):,}", text, "#days", css_class)
    yield from _count_failures(overview.lines)
    if down := states.count(SiteState.DOWNTIME):
        yield ui.Tile(f"{down:,} of {len(states):,}", "sites in a downtime", "#days")


def _count_failures(lines: SiteLines) -> Iterator[ui.Tile]:
    """Count the failures of the latest day with measurements."""
    for day in reversed(list(lines[0].days) if lines else []):
        total = overview_days.sum_outcomes(line.days[day] for line in lines)
        if total.total:
            yield ui.Tile(
                f"{total.failed + total.implausible:,} of {total.assessed:,}",
                f"measurements failed or implausible on {day}",
                "#days",
                "" if total.status is SiteState.OK else total.status.value,
            )
            return


def _count_slower_variants(overview: Overview) -> ui.Tile:
    """Count the slower variants of the comparison with most of them, the newest decided of several."""
    counts = [count_slower(summary.counts) for summary in overview.latest]
    (slower, decided, total, scope), row = max(
        zip(counts, overview.described, strict=True),
        key=lambda pair: (pair[0][0], pair[0][1] > 0),
    )
    state = "slower" if decided else "decided"
    more = f", {total - decided:,} not decided," if 0 < decided < total else ""
    return ui.Tile(
        f"{slower:,} of {total:,}",
        f"variants {state}{more} {scope}: {row['compared']}",
        link_to("comparison", comparison=row["comparison_id"]),
        "critical" if slower else "",
    )


def _count_running(overview: Overview) -> ui.Tile:
    """Count running campaigns and their measurements, and name who submitted them."""
    active = overview.active
    names = join_names([*dict.fromkeys(filter(None, (state.submitter for state in active)))])
    text = f"campaign{'s' if len(active) != 1 else ''} running{f' by {names}' if names else ''}"
    planned = sum(state.campaign.planned_measurements for state in active)
    if not planned:
        return ui.Tile(str(len(active)), text, "#running")
    recorded = sum(min(state.recorded, state.campaign.planned_measurements) for state in active)
    text += f": {recorded:,} of {planned:,} measurements"
    return ui.Tile(str(len(active)), text, "#running", share_done=recorded / planned)


def _show_matrix(overview: Overview, exported: DataTable) -> Iterator[ui.Section]:
    """Show the table of sites by day with its legend and rule, or when the last measurements were."""
    store, query = overview.store, overview.query
    yield ui.Form(query.list_inputs(to=None, days=(), by=SITE_KINDS))
    for states in overview.states:
        yield from states.show_central()
    matrix = _make_matrix(overview)
    if not matrix.rows:
        newest = overview_queries.find_last_day(store)
        if not newest:
            yield ui.Paragraph("No measurements yet.")
            return
        day = day_from_number(newest)
        link = ui.Link(str(day), link_to_same_page(to=day))
        yield ui.Paragraph("No measurements in this period. The last ones are from ", link, ".")
        return
    yield ui.TableSection(matrix, "newest", exported)
    yield ui.Legend(
        [(ui.Badge(day.letter, day.status.value), day.grade) for day in overview_days.EXAMPLE_DAYS]
    )
    evaluated = (" The state is that of the ", ui.Link("last evaluation", link_to("sites")), ".")
    yield ui.quiet(
        f"{describe_daily_rule()} Jobs without any measurement are not counted.",
        *(evaluated if overview.current else ()),
    )
    sites = {*overview_queries.list_sites(store, query.by)}
    silent = sorted(sites - {line.site for line in overview.lines})
    if silent:
        names = join_names(silent, MAX_NAMED_SITES)
        yield ui.quiet(f"Sites without measurements in this period: {names}.")


def _make_matrix(overview: Overview) -> DataTable:
    """Make the table of sites by day; the column of states only after an evaluation."""
    table_columns = [states.make_column() for states in overview.states if states.current]
    if overview.efficiencies:
        table_columns.append(
            overview_days.make_efficiency_column(overview.efficiencies, overview.inefficient)
        )
    addresses = {day: link_to("day", day=day) for day in overview.query.window}

    def link_to_day(line: overview_days.SiteDays[Any], day: date) -> str:
        return f"{addresses[day]}?{urlencode({'site': line.site})}"

    return overview_days.make_day_table(
        "days",
        "Status of each site by day",
        overview_days.sort_worst_first(overview.lines, overview.current, overview.inefficient),
        link_to_day if overview.query.by == JOB_SITE else _make_storage_linker(JOB_SITE),
        [*table_columns, overview_days.GOOD_COLUMN],
        overview.site_address,
    )


def _make_storage_linker(by: str) -> Callable[[overview_days.SiteDays[Any], date], str]:
    """Link a storage's day to a figure of its measurements, grouped by a column and release."""
    link_figure = make_figure_linker()

    def link_to_measurements(line: overview_days.SiteDays[Any], day: date) -> str:
        where = f"{STORAGE_SITE}={line.site}"
        parameters = {
            "metric": common_tables.DEFAULT_METRIC,
            "from": day,
            "to": day,
            "where": where,
        }
        return link_figure((by, "axis_root"), parameters)

    return link_to_measurements


def _show_news(overview: Overview) -> Iterator[ui.Section]:
    """Show what changed, the latest comparisons and what runs, each with how to start."""
    changes = [change.paragraph for change in overview.changes]
    yield ui.Titled(
        "Since yesterday",
        ui.Bullets(changes, limit=overview_days.MAX_CHANGES)
        or ui.Paragraph("No measurements or submissions since yesterday."),
        *(states.show_news() for states in overview.states),
        anchor="changes",
    )
    first = "No comparisons yet. Compare two measured releases:"
    compare = ui.suggest(first, "treehammer compare 6.38.00 6.40.00")
    verdicts = [overview.folded_verdicts] if overview.latest else compare
    yield ui.Titled("Latest verdicts", *verdicts, anchor="verdicts")
    remark = ui.quiet(
        "Measurements are counted as they arrive. Job states are as of the last ",
        ui.Code("treehammer status"),
        " or ",
        ui.Code("collect"),
        ".",
    )
    start = "Nothing is running. Start a campaign:"
    submit = ui.suggest(start, "treehammer submit ttree-read --wait")
    running = (overview.running, remark) if overview.active else submit
    yield ui.Titled("Running campaigns", *running, anchor="running")


def _build_site_day_table(lines: Sequence[overview_days.SiteDays[DayOutcomes]]) -> DataTable:
    rows = [
        {
            "site": line.site,
            "day": day.isoformat(),
            "status": judged.grade,
            **outcome_counts(judged),
        }
        for line in lines
        for day, judged in line.days.items()
    ]
    table_columns = (*columns("site", "day", "status"), *outcome_columns())
    return DataTable("site_days", "Sites by day", table_columns, rows)
