"""The list of campaigns, the newest first."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.sql.read import campaign_queries
from treehammer.sql.write.store import Store
from treehammer.web.views.shared.campaign_table import campaign_table
from treehammer.web.views.shared.page_context import PageContext, PageView
from treehammer.web.views.shared.pagination import (
    count_pages,
    parse_page_number,
    past_last_page_text,
)

#: Campaigns on a page.
CAMPAIGNS_PER_PAGE = 20


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the list."""
    return [context.page_route("/campaigns", campaign_list_view, "campaigns")]


def campaign_list_view(store: Store, request: Request) -> PageView:
    """What the list shows."""
    number = parse_page_number(request)
    found, count = campaign_queries.list_campaigns(
        store, (number - 1) * CAMPAIGNS_PER_PAGE, CAMPAIGNS_PER_PAGE
    )
    many = count_pages(count, CAMPAIGNS_PER_PAGE)
    table = campaign_table("campaigns", "Campaigns, the newest first", found, request)
    table = replace(table, empty_text=past_last_page_text(number, many))
    values = {"page": number, "pages": many, "count": count}
    return PageView("campaigns.html.j2", "Campaigns", values, (table,))
