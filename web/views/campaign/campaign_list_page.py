"""List of campaigns, newest first."""

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

#: Campaigns on one page.
CAMPAIGNS_PER_PAGE = 20


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    return [context.page_route("/campaigns", campaign_list_view, "campaigns")]


def campaign_list_view(store: Store, request: Request) -> PageView:
    """Collect the data of the list."""
    number = parse_page_number(request)
    campaigns, count = campaign_queries.list_campaigns(
        store, (number - 1) * CAMPAIGNS_PER_PAGE, CAMPAIGNS_PER_PAGE
    )
    page_count = count_pages(count, CAMPAIGNS_PER_PAGE)
    table = campaign_table("campaigns", "Campaigns, newest first", campaigns, request)
    table = replace(
        table,
        empty_text=past_last_page_text(number, page_count),
        is_arrangeable=page_count == 1,
    )
    values = {"page": number, "pages": page_count, "count": count}
    return PageView("campaigns.html.j2", "Campaigns", values, (table,))
