"""Search for a site, campaign, job, host, ROOT release or test."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from treehammer.sql.read.reader import MAX_HITS, HitKind, SearchHit, search_names
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn, hidden_columns
from treehammer.web.figures.explore_query import RELATIVE
from treehammer.web.pages.page_context import PageContext, PageView, link_to, wants_html

#: Kind -> column by which Explore shows it; the others have pages of their own.
_EXPLORED = {HitKind.HOST: "host", HitKind.RELEASE: "axis_root", HitKind.TEST: "test_name"}


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    return [context.page_route("/search", search_view, "search")]


def search_view(store: Store, request: Request) -> PageView | Response:
    """Collect the hits; browsers are led to the page of a single one."""
    text = request.query_params.get("q", "").strip()[:200]
    hits = search_names(store, text)
    if len(hits) == 1 and wants_html(request):
        return RedirectResponse(_link_to_hit(request, hits[0]))
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
            "address": _link_to_hit(request, hit),
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


def _link_to_hit(request: Request, hit: SearchHit) -> str:
    match hit.kind:
        case HitKind.SITE:
            return link_to(request, "site", site=hit.identity)
        case HitKind.CAMPAIGN:
            return link_to(request, "campaign", campaign_id=hit.identity)
        case HitKind.JOB:
            return link_to(request, "job", job_id=hit.identity)
    query = {"by": "day", "view": RELATIVE, _EXPLORED[hit.kind]: hit.identity}
    return link_to(request, "explore", query=query)
