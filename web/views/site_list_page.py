"""The list of sites, each with what came back and what it got of work that others did, too."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.day_status import STATUS_RULE_TEXT, DayOutcomes
from treehammer.sql.read import overview_queries, site_history
from treehammer.sql.read.figure_query import FigureQuery
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS
from treehammer.sql.write.store import Store
from treehammer.web.display import calendar_days
from treehammer.web.display.data_tables import DataTable, TableColumn
from treehammer.web.display.display_units import DisplayUnit, aligned_format, format_per_cent
from treehammer.web.views.shared.common_columns import count_columns
from treehammer.web.views.shared.page_context import PageContext, PageView, link_to
from treehammer.web.views.shared.site_columns import (
    DEFAULT_METRIC,
    DEFAULT_WINDOW_DAYS,
    status_class,
)


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the list."""
    return [context.page_route("/sites", site_list_view, "sites")]


def site_list_view(store: Store, request: Request) -> PageView:
    """Every site, with what came back in the last days."""
    today = calendar_days.today()
    first = today - timedelta(days=DEFAULT_WINDOW_DAYS - 1)
    outcomes: dict[str, Counter[str]] = {}
    last: dict[str, int] = {}
    for one in overview_queries.list_site_days(
        store, calendar_days.day_number(first), calendar_days.day_number(today)
    ):
        outcomes.setdefault(one.site, Counter()).update(one.outcomes)
        last[one.site] = max(one.day, last.get(one.site, 0))
    figure = FigureQuery(
        (DEFAULT_METRIC,), ("site", *WORKLOAD_COLUMNS), first_day=calendar_days.day_number(first)
    )
    standings = peer_comparison.compare_sites(
        (
            str(group.by["site"] or ""),
            site_history.workload_key(group.by[name] for name in WORKLOAD_COLUMNS),
            group.metrics[DEFAULT_METRIC],
        )
        for group in store.fetch_figure(figure).groups
    )
    rows: list[dict[str, Any]] = []
    for name in overview_queries.list_sites(store):
        judged = DayOutcomes.from_outcomes(outcomes.get(name, {}))
        beside = standings.get(name)
        rows.append(
            {
                "site": name,
                "last_day": calendar_days.day_from_number(last[name]).isoformat()
                if name in last
                else None,
                "status": judged.status.value,
                "good": judged.good,
                "failed": judged.failed,
                "implausible": judged.implausible,
                "not_supported": judged.unsupported,
                DEFAULT_METRIC: beside and beside.mean,
                "own": beside and beside.own_mean,
                "median": beside and beside.peer_median,
                "difference": beside and beside.difference,
                "sites": beside.peer_count if beside else 0,
            }
        )
    written = aligned_format(
        (row[name] for row in rows for name in ("own", "median")), DisplayUnit("")
    )
    columns = (
        TableColumn("site", "site", link=lambda row: link_to(request, "site", site=row["site"])),
        TableColumn("status", "status", css_class=status_class),
        *count_columns("good", "failed", "implausible"),
        TableColumn("not_supported", "not supported", is_number=True),
        # Of whatever mix of work a site did: not to be held against another's.
        TableColumn(DEFAULT_METRIC, hidden=True),
        TableColumn("own", "CPU efficiency, of what others did, too", written, is_number=True),
        TableColumn("median", "median of similar sites", written, is_number=True),
        TableColumn("difference", "difference", format_per_cent, is_number=True),
        TableColumn("sites", "similar sites", is_number=True),
        TableColumn(
            "last_day", "last measured", lambda day: day or f"over {DEFAULT_WINDOW_DAYS} days ago"
        ),
    )
    table = DataTable("sites", f"Sites, and their last {DEFAULT_WINDOW_DAYS} days", columns, rows)
    values = {
        "sites": table,
        "rule": STATUS_RULE_TEXT,
        "similar": peer_comparison.SIMILAR_SITES_TEXT,
        "days": DEFAULT_WINDOW_DAYS,
    }
    return PageView("sites.html.j2", "Sites", values, (table,))
