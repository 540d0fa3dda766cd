"""List of sites with their outcomes, and the page of one.

The page compares a site with similar ones, and lists its changes and daily outcomes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.efficiency_diagnosis import DIAGNOSIS_COLUMNS
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.status.failure_explanation import explain_period, explain_slowness
from treehammer.analysis.status.rule_judgements import DayOutcomes, describe_daily_rule
from treehammer.analysis.status.site_status import list_uses
from treehammer.analysis.status.subject_state import SiteState
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.outcome import Outcome
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import overview_queries, peer_sums, site_history
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.peer_sums import WorkSums
from treehammer.sql.read.query_model import (
    DAY,
    WEEK,
    Condition,
    FigureQuery,
    Selection,
    coarsen_day,
)
from treehammer.sql.read.site_history import Workload
from treehammer.sql.watch import state_history
from treehammer.sql.watch.state_history import SITE, list_standing_states
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.web.core.responses import allow_any_text
from treehammer.web.display_formats import (
    DisplayUnit,
    EfficiencyExplanation,
    aligned_format,
    day_from_number,
    day_number,
    explain_efficiency,
    format_per_cent,
    midnight_us,
    today,
)
from treehammer.web.figures.explore_query import RELATIVE
from treehammer.web.labels import VARIANT_COLUMN, head_column, label_variants
from treehammer.web.page_query import TIME_TABLE, PageOperation
from treehammer.web.pages.common_tables import (
    DEFAULT_METRIC,
    DEFAULT_WINDOW_DAYS,
    build_change_point_table,
    build_history_table,
    build_states_table,
    count_columns,
    index_by_site,
    list_recent_changes,
    outcome_columns,
    outcome_counts,
    status_class,
    variant_column,
)
from treehammer.web.pages.page_context import (
    HTML,
    PageContext,
    PageModule,
    PageView,
    link_to,
    requested_format,
    wants_html,
)
from treehammer.web.pages.site_charts import (
    build_change_table,
    build_door_charts,
    build_door_table,
    build_site_chart,
    build_state_table,
    fetch_door_days,
    list_changes,
)
from treehammer.web.pages.site_standing import (
    FILTERS,
    MAX_PARTS,
    SiteQuery,
    describe_standing,
)

_COMPLETED = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value)
#: Measurements of the newest days whose wall time is broken down.
MAX_EXPLAINED = 100

#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/sites", "listSites", "sites", "All sites and their last 30 days", {"sites": "sites"}
    ),
    PageOperation(
        "/sites/{site}",
        "getSite",
        "site",
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
            "states": "current states of its jobs and its storage",
            "state_changes": "changes of these states, also superseded ones",
            "changepoints": "steps of the last 90 days in daily series of the site",
        },
        SiteQuery,
        ("standing", "explanation"),
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the list and of a site."""
    return [
        context.page_route("/sites", site_list_view, "sites"),
        context.page_route(allow_any_text("/sites/{site}"), site_view, "site"),
    ]


PAGES = PageModule(routes, position=60, menu={"sites": "Sites"}, operations=OPERATIONS)


def site_list_view(store: Store, request: Request) -> PageView:
    """Collect the data of the list of sites."""
    last = today()
    first = day_number(last - timedelta(days=DEFAULT_WINDOW_DAYS - 1))
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    last_days: dict[str, int] = {}
    for day in overview_queries.list_site_days(store, first, day_number(last)):
        outcomes[day.site].update(day.outcomes)
        last_days[day.site] = max(day.day, last_days.get(day.site, 0))
    comparisons = peer_comparison.compare_sites_since(store, [DEFAULT_METRIC], first)[
        DEFAULT_METRIC
    ]
    uses = list_uses(store)
    states = index_by_site(list_standing_states(store), SITE)
    rows = [
        {
            "site": site,
            "last_day": _format_last_day(last_days.get(site)),
            "state": states[site].state if site in states else SiteState.UNKNOWN.value,
            "use": uses.summarize(site).value,
            "state_change": states[site].id if site in states else None,
            "status": judged.status.value,
            **outcome_counts(judged),
            **_comparison_values(comparisons.get(site)),
        }
        for site in overview_queries.list_sites(store)
        for judged in (DayOutcomes.from_outcomes(outcomes[site]),)
    ]
    table = _site_table(rows, request)
    values = {
        "sites": table,
        "rule": describe_daily_rule(),
        "similar": peer_comparison.SIMILAR_SITES_TEXT,
        "days": DEFAULT_WINDOW_DAYS,
    }
    return PageView("sites.html.j2", "Sites", values, (table,))


def _format_last_day(number: int | None) -> str | None:
    return None if number is None else day_from_number(number).isoformat()


def _comparison_values(comparison: PeerComparison | None) -> dict[str, float | None]:
    if comparison is None:
        return {**dict.fromkeys((DEFAULT_METRIC, "own", "median", "difference")), "sites": 0}
    return {
        DEFAULT_METRIC: comparison.mean,
        "own": comparison.own_mean,
        "median": comparison.peer_median,
        "difference": comparison.difference,
        "sites": comparison.peer_count,
    }


def _state_class(row: Row) -> str:
    return str(row["state"])


def _site_table(rows: Sequence[Row], request: Request) -> DataTable:
    write = aligned_format(
        (row[name] for row in rows for name in ("own", "median")), DisplayUnit("")
    )

    def link_to_evidence(row: Row) -> str:
        change = row["state_change"]
        return link_to(request, "state-change", change=change) if change else ""

    columns = (
        TableColumn("site", "site", link=lambda row: link_to(request, "site", site=row["site"])),
        TableColumn("state", "state", css_class=_state_class, link=link_to_evidence),
        TableColumn("use", "use"),
        TableColumn("state_change", hidden=True),
        TableColumn("status", f"{DEFAULT_WINDOW_DAYS} days", css_class=status_class),
        *outcome_columns(),
        # Averages over a site's own mix of work are not comparable, so they are exported only.
        TableColumn(DEFAULT_METRIC, hidden=True),
        TableColumn("own", "CPU efficiency of comparable work", write, is_number=True),
        TableColumn("median", "median of similar sites", write, is_number=True),
        TableColumn("difference", "difference", format_per_cent, is_number=True),
        TableColumn("sites", "similar sites", is_number=True),
        TableColumn(
            "last_day",
            "last measured",
            format_row=lambda row: row["last_day"] or f"more than {DEFAULT_WINDOW_DAYS} days ago",
        ),
    )
    return DataTable("sites", f"Sites over the last {DEFAULT_WINDOW_DAYS} days", columns, rows)


def site_view(store: Store, request: Request) -> PageView | Response:
    """Collect the data of the page of a site.

    Raises:
        NothingToDoError: the site has never measured anything.
    """
    query = SiteQuery.parse(request)
    site = query.site
    works = _sort_works(site_history.list_workloads(store, site))
    if not works:
        if not site and wants_html(request):
            return RedirectResponse(link_to(request, "sites"))
        raise overview_queries.build_unknown_site_error(store, site)
    query = query.normalize_variant(works)
    sums = peer_sums.fetch_peer_sums(
        store, site, query.metric, query.day_numbers, query.work_filters
    )
    points = _compare_over_time(sums.dailies, query)
    standing = describe_standing(store, query, sums.totals)
    max_parts = MAX_PARTS if requested_format(request) == HTML else None
    explanation = _explain_site(store, query)
    door_days = fetch_door_days(store, query)
    tables = {
        "series": _series_table(points, query),
        "parts": standing.build_table(max_parts),
        "contrasts": standing.build_contrast_table(),
        "time": explanation.table,
        **_history_tables(store, query),
        "door_days": build_door_table(door_days),
        "outcomes": _outcome_table(store, query, request),
        "works": _work_table(works),
        **_state_tables(store, site, request),
    }
    changes = tables["changes"].rows
    chart = build_site_chart(points, changes, query, request)
    door_charts = build_door_charts(door_days, changes, query)
    values: dict[str, Any] = {
        **tables,
        "query": query,
        "chart": chart,
        "standing": standing.sentence,
        "trouble": _explain_last_day(store, site, tables),
        "door_charts": door_charts,
        "explanation": explanation.sentences,
        "metric": METRICS_BY_NAME[query.metric],
        "form": query.list_inputs(
            metric={name: head_column(name) for name in ROLLUP_METRICS},
            **{name: _filter_options(works, name, query.filters.get(name)) for name in FILTERS},
            to=None,
            days=(),
        ),
        "similar": peer_comparison.SIMILAR_SITES_TEXT,
        "links": list(_link_to_explore(store, query, request)),
        "work_matrix": _build_work_matrix(works),
    }
    charts = {"trend": chart} if chart else {}
    charts |= {f"doors-{number}": drawing for number, drawing in enumerate(door_charts, 1)}
    title = site or "(no site)"
    return PageView("site.html.j2", title, values, tuple(tables.values()), charts=charts)


def _history_tables(store: Store, query: SiteQuery) -> dict[str, DataTable]:
    """Build the tables of doors, releases and nodes, and of their changes."""
    history = site_history.fetch_history(store, query.site, *query.day_numbers)
    measured_earlier = site_history.has_measured_before(store, query.site, query.day_numbers[0])
    return {
        "state": build_state_table(history, earlier=measured_earlier),
        "changes": build_change_table(list_changes(history)),
    }


def _state_tables(store: Store, site: str, request: Request) -> dict[str, DataTable]:
    """Build the tables of states, their changes, and change points of daily series."""
    changes = state_history.list_state_changes(store, site=site, superseded=True, doors=True)
    return {
        "states": build_states_table(list_standing_states(store, site, doors=True), request),
        "state_changes": build_history_table(changes, request),
        "changepoints": build_change_point_table(list_recent_changes(store, site=site), request),
    }


def _explain_last_day(store: Store, site: str, tables: Mapping[str, DataTable]) -> str:
    """Explain a bad or slow last day of those shown, unless a current state explains it."""
    days = tables["outcomes"].rows
    if not days or any(row["explanation"] for row in tables["states"].rows):
        return ""
    day = date.fromisoformat(days[0]["day"])
    explain = explain_slowness if days[0]["status"] == SiteState.OK else explain_period
    explained = explain(store, site, Period.of_day(midnight_us(day)))
    return f"On {day}: {explained}" if explained else ""


def _explain_site(store: Store, query: SiteQuery) -> EfficiencyExplanation:
    """Explain the site's newest measurements of the last days shown."""
    rows = site_history.fetch_newest_solo(
        store, query.site, query.recent_day_numbers, MAX_EXPLAINED, DIAGNOSIS_COLUMNS
    )
    days = f"from {query.recent_first} to {query.last}"
    note = f"The newest {MAX_EXPLAINED} at most, {days}, ignoring the filters."
    return explain_efficiency(query.site or "Work without a site", rows, note)


def _compare_over_time(dailies: WorkSums, query: SiteQuery) -> list[PeerComparison]:
    """Compare the site with similar sites, per day or per week."""
    return peer_comparison.compare_over_time(
        dailies, query.site, lambda day: coarsen_day(WEEK, day) if query.is_weekly else day
    )


def _link_to_explore(store: Store, query: SiteQuery, request: Request) -> Iterator[tuple[str, str]]:
    """Link to Explore with the page's metric, filters and days."""
    filters: dict[str, Any] = query.work_filters
    filters |= {"site": query.site, "from": str(query.first), "to": str(query.last)}
    if chosen := query.filters.get("variant"):
        filters["variant"] = (
            site_history.list_recorded_variants(store, [chosen], query.site) or chosen
        )
    metric = {"metric": query.metric}
    for title, view in (
        (f"{head_column(query.metric)} by variant", {**metric, "by": VARIANT_COLUMN}),
        (
            f"{head_column(query.metric)} by day and release",
            {**metric, "by": "day", "view": RELATIVE},
        ),
        ("Read latency by door", {"view": "latency", "by": "door"}),
    ):
        yield title, link_to(request, "explore", query={**view, "color": "axis_root", **filters})


def _filter_options(
    works: Sequence[Workload], name: str, chosen: str | None
) -> Mapping[str, str] | Sequence[str]:
    """Return the values to choose from, variants with their labels."""
    values = {value for value in (chosen, *(getattr(work, name) for work in works)) if value}
    if name == "variant":
        return label_variants(map(drop_release_axis, values)).names
    return sorted(values, key=natural_sort_key)


def _series_table(points: Sequence[PeerComparison], query: SiteQuery) -> DataTable:
    rows = [
        {
            query.time_column: day_from_number(point.time).isoformat(),
            "measurements": point.count,
            "mean": point.mean,
            "compared": point.compared_count,
            "own": point.own_mean,
            "rms": point.rms,
            "error": point.standard_error,
            "median": point.peer_median,
            "difference": point.difference,
            "sites": point.peer_count,
        }
        for point in points
    ]
    columns = (
        TableColumn(query.time_column, "week of" if query.time_column == WEEK else "day (UTC)"),
        TableColumn("measurements", "timed and good", is_number=True),
        TableColumn("mean", "mean of all", is_number=True),
        TableColumn("compared", "compared", is_number=True),
        TableColumn("own", "their mean", is_number=True),
        TableColumn("rms", "± RMS", is_number=True),
        TableColumn("error", hidden=True),
        TableColumn("median", "median of similar sites", is_number=True),
        TableColumn("difference", "difference", format_per_cent, is_number=True),
        TableColumn("sites", "similar sites", is_number=True),
    )
    caption = f"{head_column(query.metric)} by {query.time_column}, and the median of similar sites"
    return DataTable("series", caption, columns, rows)


def _outcome_table(store: Store, query: SiteQuery, request: Request) -> DataTable:
    """Build the table of executions of all kinds by day and outcome."""
    selection = Selection(conditions=(Condition("site", "=", query.site or None),))
    figure = FigureQuery((), (DAY,), selection, *query.day_numbers, kind=None)
    groups = store.fetch_figure(figure).groups
    classes = sorted({name for group in groups for name in group.outcomes} - {*_COMPLETED})
    rows = [
        {
            "day": day_from_number(int(group.by[DAY] or 0)).isoformat(),
            "status": DayOutcomes.from_outcomes(group.outcomes).status.value,
            **{name: group.outcomes.get(name, 0) for name in (*_COMPLETED, *classes)},
        }
        for group in reversed(groups)
    ]
    columns = (
        TableColumn(
            "day",
            "day (UTC)",
            link=lambda row: link_to(request, "day", day=row["day"], query={"site": query.site}),
        ),
        TableColumn("status", "status", css_class=status_class),
        *count_columns(*_COMPLETED, *classes),
    )
    caption, empty = "Outcomes of all executions by day", "No measurements in this period."
    return DataTable("outcomes", caption, columns, rows, empty_text=empty)


def _sort_works(works: Sequence[Workload]) -> list[Workload]:
    """Sort all work by test, values of the variant, dataset, release and door."""
    variants = label_variants(work.variant for work in works)

    def key(work: Workload) -> tuple[Any, ...]:
        place = variants.place(work.variant)
        return work.test, place, work.dataset, natural_sort_key(work.root), work.door

    return sorted(works, key=key)


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
    columns = (
        TableColumn("variant", "variant", is_long=True),
        TableColumn("test", "test"),
        TableColumn("dataset", "dataset"),
        *(
            TableColumn(key, release, lambda doors: ", ".join(doors) or "–")
            for release, key in keys.items()
        ),
    )
    caption = "Everything measured here: doors by variant and ROOT release"
    return DataTable("work_matrix", caption, columns, [*rows.values()], note=variants.note)


def _work_table(works: Sequence[Workload]) -> DataTable:
    rows = [{name: getattr(work, name) for name in Workload.__annotations__} for work in works]
    variants = label_variants((work.variant for work in works), hide_release=True)
    columns = (
        TableColumn("test", "test"),
        variant_column(variants),
        TableColumn("variant_label", hidden=True),
        TableColumn("root", "ROOT"),
        TableColumn("dataset", "dataset"),
        TableColumn("door", "door"),
        TableColumn("protocol", "protocol"),
    )
    return DataTable("work", "Everything measured here", columns, rows, note=variants.note)
