"""List of sites with their outcomes and a comparison of their CPU efficiency."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.analysis.status.day_states import DayOutcomes, describe_daily_rule
from treehammer.analysis.status.site_status import list_uses
from treehammer.analysis.status.subject_state import SiteState
from treehammer.sql.read import overview_queries, site_history
from treehammer.sql.read.figure_query import FigureQuery
from treehammer.sql.read.peer_sums import WorkSums
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS
from treehammer.sql.watch.state_history import SITE, list_standing_states
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.web import display_formats
from treehammer.web.display_formats import DisplayUnit, aligned_format, format_per_cent
from treehammer.web.pages.common_tables import (
    DEFAULT_METRIC,
    DEFAULT_WINDOW_DAYS,
    index_by_site,
    outcome_columns,
    outcome_counts,
    status_class,
)
from treehammer.web.pages.page_context import PageContext, PageView, link_to


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    return [context.page_route("/sites", site_list_view, "sites")]


def site_list_view(store: Store, request: Request) -> PageView:
    """Collect the data of the list of sites."""
    today = display_formats.today()
    first = display_formats.day_number(today - timedelta(days=DEFAULT_WINDOW_DAYS - 1))
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    last_days: dict[str, int] = {}
    for day in overview_queries.list_site_days(store, first, display_formats.day_number(today)):
        outcomes[day.site].update(day.outcomes)
        last_days[day.site] = max(day.day, last_days.get(day.site, 0))
    comparisons = _compare_sites(store, first)
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


def _compare_sites(store: Store, first: int) -> Mapping[str, PeerComparison]:
    """Compare every site with similar sites since a day (YYYYMMDD)."""
    figure = FigureQuery((DEFAULT_METRIC,), ("site", *WORKLOAD_COLUMNS), first_day=first)
    rows = []
    for group in store.fetch_figure(figure).groups:
        work, moments = site_history.group_workload_key(group), group.metrics[DEFAULT_METRIC]
        site = str(group.by["site"] or "")
        rows.append((0, site, work, moments.value_count, moments.total, moments.squares))
    return peer_comparison.compare_sites(WorkSums.collect(rows))


def _format_last_day(number: int | None) -> str | None:
    return None if number is None else display_formats.day_from_number(number).isoformat()


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
