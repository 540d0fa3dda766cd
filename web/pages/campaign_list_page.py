"""List of campaigns, newest first."""

from __future__ import annotations

from dataclasses import replace

from treehammer.sql.read import campaign_queries
from treehammer.web.arranged_table import count_pages, past_last_page_text
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import ListQuery
from treehammer.web.pages.common_tables import campaign_table
from treehammer.web.sections import Command, Paragraph, list_pages

#: Campaigns on one page.
CAMPAIGNS_PER_PAGE = 20


@page(
    "/campaigns",
    "campaigns",
    ListQuery,
    menu="Campaigns",
    position=50,
    api=PageOperation(
        "listCampaigns",
        "Campaigns, newest first, 20 per page",
        {"campaigns": "campaigns"},
        ("page", "pages", "count"),
    ),
)
def campaign_list_page(request: PageRequest[ListQuery]) -> PageContent:
    """Build the list."""
    number = request.query.page
    campaigns, count = campaign_queries.list_campaigns(
        request.store, (number - 1) * CAMPAIGNS_PER_PAGE, CAMPAIGNS_PER_PAGE
    )
    pages = count_pages(count, CAMPAIGNS_PER_PAGE)
    table = replace(
        campaign_table("campaigns", "Campaigns, newest first", campaigns),
        empty_text=past_last_page_text(number, pages),
        is_arrangeable=pages == 1,
    )
    start = (
        Paragraph("No campaigns yet. Start one:"),
        Command("treehammer submit ttree-read --wait"),
    )
    sections = (table, list_pages(number, pages)) if count else start
    about = {"page": number, "pages": pages, "count": count}
    return PageContent("Campaigns", sections, (table,), about)
