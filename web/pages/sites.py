"""The list of sites, each with what came back and what it got of work that others did, too."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis import peers
from treehammer.analysis.days import RULE, Judged
from treehammer.sql import overview, site_history
from treehammer.sql.figures import Figure
from treehammer.sql.site_history import WORK
from treehammer.sql.store import Store
from treehammer.web.pages import days
from treehammer.web.pages.columns import number_columns
from treehammer.web.pages.context import PageContext, View, link_to
from treehammer.web.pages.site import METRIC, USUAL, look, per_cent
from treehammer.web.pages.tables import Column, Table
from treehammer.web.pages.units import Unit, aligned


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the list."""
    return [context.page("/sites", view, "sites")]


def view(store: Store, request: Request) -> View:
    """Every site, with what came back in the last days."""
    today = days.today()
    first = today - timedelta(days=USUAL - 1)
    outcomes: dict[str, Counter[str]] = {}
    last: dict[str, int] = {}
    for one in overview.site_days(store, days.numbered(first), days.numbered(today)):
        outcomes.setdefault(one.site, Counter()).update(one.outcomes)
        last[one.site] = max(one.day, last.get(one.site, 0))
    figure = Figure((METRIC,), ("site", *WORK), first_day=days.numbered(first))
    standings = peers.standings(
        (
            str(group.by["site"] or ""),
            site_history.work(group.by[name] for name in WORK),
            group.metrics[METRIC],
        )
        for group in store.figure(figure).groups
    )
    rows: list[dict[str, Any]] = []
    for name in overview.sites(store):
        judged = Judged.of(outcomes.get(name, {}))
        beside = standings.get(name)
        rows.append(
            {
                "site": name,
                "last_day": days.of_number(last[name]).isoformat() if name in last else None,
                "status": judged.status.value,
                "good": judged.good,
                "failed": judged.failed,
                "implausible": judged.implausible,
                "not_supported": judged.unsupported,
                METRIC: beside and beside.mean,
                "own": beside and beside.own,
                "median": beside and beside.median,
                "difference": beside and beside.difference,
                "sites": beside.sites if beside else 0,
            }
        )
    written = aligned((row[name] for row in rows for name in ("own", "median")), Unit(""))
    columns = (
        Column("site", "site", link=lambda row: link_to(request, "site", site=row["site"])),
        Column("status", "status", look=look),
        *number_columns("good", "failed", "implausible"),
        Column("not_supported", "not supported", number=True),
        # Of whatever mix of work a site did: not to be held against another's.
        Column(METRIC, hidden=True),
        Column("own", "CPU efficiency, of what others did, too", written, number=True),
        Column("median", "median of similar sites", written, number=True),
        Column("difference", "difference", per_cent, number=True),
        Column("sites", "similar sites", number=True),
        Column("last_day", "last measured", lambda day: day or f"over {USUAL} days ago"),
    )
    table = Table("sites", f"Sites, and their last {USUAL} days", columns, rows)
    values = {"sites": table, "rule": RULE, "similar": peers.SIMILAR, "days": USUAL}
    return View("sites.html.j2", "Sites", values, (table,))
