"""Page of a site: comparison with similar sites, where its time went, its changes and daily outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Protocol

from starlette.responses import RedirectResponse, Response

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.efficiency_query import MAX_EXPLAINED, load_explained_rows
from treehammer.analysis.descriptive.group_summary import describe_interpreted_loops
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.status.day_outcomes import DAY_GRADES, DayOutcomes
from treehammer.analysis.status.failure_explanation import explain_period, explain_slowness
from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.outcome import Outcome
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import overview_queries, peer_sums, site_history
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.query_model import DAY, Condition, FigureQuery, Selection, coarsen_day
from treehammer.sql.read.site_history import Workload
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, build_table
from treehammer.text_formatting import format_cell
from treehammer.verticals import import_parts
from treehammer.web import display_formats
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to, wants_html
from treehammer.web.columns import (
    column,
    columns,
    count_columns,
    hidden,
    metric_column,
    variant_column,
)
from treehammer.web.figure_links import list_figure_links
from treehammer.web.figures.line_chart import LineChart
from treehammer.web.labels import head_column, label_variants, title_column
from treehammer.web.page import (
    TIME_TABLE,
    PageContent,
    PageOperation,
    PageRequest,
    list_part_tables,
    page,
)
from treehammer.web.pages import common_tables, site_charts
from treehammer.web.pages.site_standing import FILTERS, MAX_PARTS, SiteQuery, describe_standing

_ALL_COUNTED = "All executions are counted, including untimed checks of values, regardless of the filters above."
_COMPLETED = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value)


class SiteStates(Protocol):
    """What ``page_parts`` of a vertical shows of the states of a site and its changes over time."""

    tables: Mapping[str, DataTable]
    is_explained: bool

    def show_current(self) -> ui.Section:
        """Show the current states."""

    def show_steps(self) -> ui.Section | None:
        """Show steps of daily series; None without any."""

    def show_changes(self) -> ui.Section:
        """Show the changes of the states."""


@page(
    "/sites/{site:text}",
    "site",
    SiteQuery,
    position=61,
    help="site-status",
    api=PageOperation(
        "getSite",
        "A site compared with the median of similar sites, and its changes",
        {
            "series": "the site and the median of similar sites, by day or week",
            "parts": "parts of the site's difference by variant, door, host and CPU model",
            "contrasts": "conditions in which most of the better sites differ",
            "time": TIME_TABLE,
            "state": "doors, releases and nodes",
            "changes": "changes of doors, releases and nodes, by day",
            "door_days": "CPU and wall time of each door relative to the mean of the same work, by day",
            "outcomes": "outcomes by day",
            "work": "tests and variants ever measured",
            **list_part_tables("page_parts", "SITE_TABLES"),
        },
        ("standing", "explanation"),
    ),
)
def site_page(request: PageRequest[SiteQuery]) -> PageContent | Response:
    """Build the page of a site, or lead to the list; one that has never measured anything is refused."""
    store, site = request.store, request.query.site
    works = _sort_works(site_history.list_workloads(store, site))
    if not works:
        if not site and wants_html(request.raw):
            return RedirectResponse(link_to("sites"))
        raise overview_queries.build_unknown_site_error(store, site)
    query = request.query.normalize_variant(works)
    sums = peer_sums.load_peer_sums(
        store, site, query.metric, query.day_numbers, query.work_filters
    )
    points = peer_comparison.compare_over_time(
        sums.dailies, site, partial(coarsen_day, query.time_column)
    )
    standing = describe_standing(store, query, sums)
    explanation = _explain_site(store, query)
    door_days = site_charts.load_door_days(store, query)
    days = query.recent_day_numbers
    loops = site_history.load_newest(store, site, days, MAX_EXPLAINED, ("site", "loop_fallback"))
    history = site_history.load_history(store, site, *query.day_numbers)
    earlier = site_history.has_measured_before(store, site, query.day_numbers[0])
    parts: list[SiteStates] = [part.SiteStates(store, site) for part in import_parts("page_parts")]
    tables = {
        "series": _series_table(points, query),
        "parts": standing.build_table(MAX_PARTS if request.is_html else None),
        "contrasts": standing.build_contrast_table(),
        "time": explanation.table,
        "state": site_charts.build_state_table(history, earlier=earlier),
        "changes": site_charts.build_change_table(history, door_days),
        "door_days": site_charts.build_door_table(door_days),
        "outcomes": _outcome_table(store, query),
        "works": _work_table(works),
    }
    for states in parts:
        tables |= states.tables
    charts = site_charts.build_door_charts(door_days, tables["changes"].rows, query)
    sections = (
        *(states.show_current() for states in parts),
        ui.headline(_explain_last_day(store, site, tables["outcomes"].rows, parts)),
        ui.headline(standing.sentence),
        ui.headline(" ".join(describe_interpreted_loops(loops))),
        ui.Paragraph(site_charts.describe_server_effects(tables["changes"].rows)),
        ui.Links(list_figure_links("site", store, _describe_figures(store, query))),
        _build_form(query, works),
        _compare_with_similar(
            query, tables, site_charts.build_site_chart(points, tables["changes"].rows, query)
        ),
        *(states.show_steps() for states in parts),
        common_tables.efficiency_section(explanation),
        *(
            ui.Paragraph(part.describe_gain(store, request.resources.settings, site, days))
            for part in import_parts("site_gains")
        ),
        _describe_doors(site, tables, charts),
        *(states.show_changes() for states in parts),
        _show_outcomes(tables["outcomes"]),
        ui.Titled(
            "Workloads",
            ui.TableSection(_build_work_matrix(works), exported=tables["works"]),
            anchor="work",
        ),
    )
    return PageContent(
        site or "(no site)",
        sections,
        tuple(tables.values()),
        {"standing": standing.sentence, "explanation": explanation.sentences},
        crumbs=[ui.Link("Sites", link_to("sites"))],
    )


def _build_form(query: SiteQuery, works: Sequence[Workload]) -> ui.Form:
    filters = {name: _filter_options(works, name, query.filters.get(name)) for name in FILTERS}
    metrics = {name: head_column(name) for name in ROLLUP_METRICS}
    return ui.Form(query.list_inputs(metric=metrics, **filters, to=None, days=()))


def _show_outcomes(outcomes: DataTable) -> ui.Titled:
    note = ui.quiet(_ALL_COUNTED) if outcomes.rows else None
    return ui.Titled("Outcomes", outcomes, note, anchor="outcomes")


def _compare_with_similar(
    query: SiteQuery, tables: Mapping[str, DataTable], chart: LineChart | None
) -> ui.Titled:
    """Compare the site with similar ones: over time, by parts of the difference, and by conditions."""
    metric = METRICS_BY_NAME[query.metric]
    unit = f" In {metric.unit}." if metric.unit not in ("", "1") else ""
    better = f" {metric.better.capitalize()} is better." if metric.better else ""
    about = ui.Paragraph(ui.Styled(metric.meaning, tooltip=metric.name), unit, better)
    return ui.Titled(
        "Comparison with similar sites",
        about,
        *_detail_comparison(query, tables, chart),
        anchor="comparison",
    )


def _detail_comparison(
    query: SiteQuery, tables: Mapping[str, DataTable], chart: LineChart | None
) -> Iterator[ui.Section | None]:
    if not tables["series"].rows:
        matched, remedy = (
            (" match the filters", ", or “all” in the filters") if query.filters else ("", "")
        )
        yield ui.Paragraph(
            f"No good measurements with {title_column(query.metric)} in this period{matched}. Choose "
            f"a longer period{remedy}."
        )
        return
    if chart:
        marks = [" Numbered lines are ", ui.Link("changes", "#changed"), "."]
        yield ui.Figure(
            "trend",
            chart,
            ui.Paragraph(
                "Difference from the median of similar sites on the same work in per cent, by "
                f"{'week' if query.is_weekly else 'day'} (UTC), from {query.first} to {query.to}, so "
                "that another mix of work is no change; bars are the RMS of executions around the mean "
                "of their own work.",
                *(marks if tables["changes"].rows else ()),
            ),
        )
    else:
        yield ui.Paragraph(
            "No other site did the same work in this period, so there is no comparison. Choose a "
            "longer period, or run the same test at other sites."
        )
    if tables["parts"].rows:
        yield tables["parts"]
        yield ui.quiet(
            "Parts of one kind add up to the difference. A part is large when it differs much, or is "
            "much of the work."
        )
    yield ui.if_filled(tables["contrasts"])
    yield ui.Folded("How similar sites are chosen", ui.quiet(peer_comparison.SIMILAR_SITES_TEXT))
    yield ui.table_of_values(tables["series"])


def _describe_doors(
    site: str, tables: Mapping[str, DataTable], charts: Sequence[LineChart]
) -> ui.Titled:
    figures = [
        ui.Figure(f"doors-{number}", chart, chart.title, is_caption_first=True)
        for number, chart in enumerate(charts, 1)
    ]
    by_door = ui.Titled(
        "Time by door",
        ui.Group("charts", *figures),
        ui.quiet(
            "Each kind of work is compared with its own mean over all days shown and all doors of one "
            "protocol, so that neither another mix of work nor another protocol is a change. Numbered "
            "lines are changes of a server's version. ",
            ui.Link(
                "Compare doors", link_to("compare", query={"axis": "door", "where": f"site={site}"})
            ),
        ),
        ui.table_of_values(tables["door_days"]),
        anchor="doordays",
        level=3,
    )
    return ui.Titled(
        "Doors and middleware",
        tables["state"],
        ui.Titled(
            "Changes",
            tables["changes"],
            ui.quiet(
                "Derived from the last complete measurement of each variant on each day. A change is a "
                "difference from the previous measured day; days without a report are skipped."
            ),
            anchor="changed",
            level=3,
        ),
        by_door if charts else None,
        anchor="doors",
    )


def _explain_last_day(
    store: Store, site: str, days: Sequence[Row], parts: Iterable[SiteStates]
) -> str:
    """Explain a bad or slow last day of those shown, unless the current states are explained."""
    if not days or any(states.is_explained for states in parts):
        return ""
    day = date.fromisoformat(days[0]["day"])
    explain = explain_slowness if days[0]["status"] == DAY_GRADES[SiteState.OK] else explain_period
    explained = explain(store, site, Period.of_day(display_formats.midnight_us(day)))
    return f"On {day}: {explained}" if explained else ""


def _explain_site(store: Store, query: SiteQuery) -> display_formats.EfficiencyExplanation:
    """Explain the site's newest measurements of the last days shown."""
    rows = load_explained_rows(store, query.site, query.recent_first, query.to)
    days = f"from {query.recent_first} to {query.to}"
    note = f"The newest {MAX_EXPLAINED:,} at most, {days}, ignoring the filters."
    return display_formats.explain_efficiency(query.site or "Work without a site", rows, note)


def _describe_figures(store: Store, query: SiteQuery) -> dict[str, Any]:
    """Describe what the page shows: metric, filters and days."""
    days = {"from": query.first, "to": query.to}
    filters = query.find_recorded_filters(store)
    return {"metric": query.metric, "site": query.site, **days, **filters}


def _filter_options(
    works: Sequence[Workload], name: str, selection: str | None
) -> Mapping[str, str] | Sequence[str]:
    """Return the values to choose from, variants with their labels."""
    values = {value for value in (selection, *(getattr(work, name) for work in works)) if value}
    if name == "variant":
        return label_variants(map(drop_release_axis, values)).names
    return sorted(values, key=natural_sort_key)


def _series_table(points: Sequence[PeerComparison], query: SiteQuery) -> DataTable:
    table_columns = (
        column(
            query.time_column,
            "week of" if query.is_weekly else "day (UTC)",
            value=lambda point: display_formats.day_from_number(point.time).isoformat(),
        ),
        column("measurements", "timed and good", value="count"),
        metric_column(query.metric, "mean of all", "mean"),
        column("compared", is_number=True, value="compared_count"),
        metric_column(query.metric, "their mean", "own", value="own_mean"),
        metric_column(query.metric, "± RMS", "rms"),
        hidden("error", value="standard_error"),
        metric_column(query.metric, "median of similar sites", "median", value="peer_median"),
        column("difference"),
        column("sites", value="peer_count"),
    )
    caption = f"{head_column(query.metric)} by {query.time_column}, and the median of similar sites"
    return build_table("series", caption, table_columns, points)


def _outcome_table(store: Store, query: SiteQuery) -> DataTable:
    """Build the table of executions of all kinds by day and outcome."""
    selection = Selection(conditions=(Condition("site", "=", query.site or None),))
    figure = FigureQuery((), (DAY,), selection, *query.day_numbers, kind=None)
    groups = store.load_figure(figure).groups
    classes = sorted({name for group in groups for name in group.outcomes} - {*_COMPLETED})
    rows = [
        {
            "day": display_formats.day_from_number(int(group.by[DAY] or 0)).isoformat(),
            "status": DayOutcomes.from_outcomes(group.outcomes).grade,
            **{name: group.outcomes.get(name, 0) for name in (*_COMPLETED, *classes)},
        }
        for group in reversed(groups)
    ]
    table_columns = (
        column("day", link=lambda row: link_to("day", day=row["day"], query={"site": query.site})),
        column("status"),
        *count_columns(*_COMPLETED, *classes),
    )
    caption, empty = "Outcomes of all executions by day", "No measurements in this period."
    return DataTable("outcomes", caption, table_columns, rows, empty_text=empty)


def _sort_works(works: Sequence[Workload]) -> list[Workload]:
    """Sort all work by test, values of the variant, dataset, release and door."""
    variants = label_variants(work.variant for work in works)

    def sort_key(work: Workload) -> tuple[Any, ...]:
        place = variants.place(work.variant)
        return work.test, place, work.dataset, natural_sort_key(work.root), work.door

    return sorted(works, key=sort_key)


def _build_work_matrix(works: Sequence[Workload]) -> DataTable:
    """Arrange all work by variant and release; cells name the doors by which it was read."""
    variants = label_variants((work.variant for work in works), hide_release=True)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    releases = sorted({work.root or "–" for work in works}, key=natural_sort_key)
    keys = {release: f"root:{release}" for release in releases}
    for work in works:
        label = variants.label(work.variant)
        row = rows.setdefault(
            (work.test, label, work.dataset),
            {"variant": label, "test": work.test, "dataset": work.dataset}
            | {key: [] for key in keys.values()},
        )
        doors = row[keys[work.root or "–"]]
        if work.door not in doors:
            doors.append(work.door)
    table_columns = (
        column("variant", is_long=True),
        *columns("test", "dataset"),
        *(
            column(key, release, format_value=lambda doors: format_cell(", ".join(doors)))
            for release, key in keys.items()
        ),
    )
    caption = "Everything measured here: doors by variant and ROOT release"
    return DataTable("work_matrix", caption, table_columns, [*rows.values()], note=variants.note)


def _work_table(works: Sequence[Workload]) -> DataTable:
    variants = label_variants((work.variant for work in works), hide_release=True)
    table_columns = (
        column("test"),
        variant_column(variants),
        hidden("variant_label"),
        *columns("root", "dataset", "door", "protocol"),
    )
    return build_table("work", "Everything measured here", table_columns, works, note=variants.note)
