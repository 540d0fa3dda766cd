"""The list of campaigns, the newest first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.collectors.job_state import JobState
from treehammer.errors import ConfigError
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.overview_queries import CampaignState
from treehammer.sql.write.store import Store
from treehammer.web.display.data_tables import DataTable, TableColumn
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.shared.page_context import PageContext, PageView, link_to

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


def campaign_table(
    name: str, caption: str, found: Sequence[CampaignState], request: Request
) -> DataTable:
    """Campaigns with how far they are, each leading to its page."""
    rows: list[dict[str, Any]] = [
        {
            "campaign": one.campaign.name or one.campaign.id,
            "campaign_id": one.campaign.id,
            "test": one.campaign.test_name,
            "submitted_us": one.campaign.created_us,
            **{state.value: one.jobs.get(state.value, 0) for state in JobState},
            "recorded": one.recorded,
            "planned": one.campaign.planned_measurements,
        }
        for one in found
    ]
    columns = (
        TableColumn(
            "campaign",
            "campaign",
            is_long=True,
            link=lambda row: link_to(request, "campaign", campaign_id=row["campaign_id"]),
        ),
        TableColumn("campaign_id", hidden=True),
        TableColumn("test", "test"),
        TableColumn("submitted_us", "submitted", format_time),
        *(
            TableColumn(state.value, state.value, _count_or_dash, is_number=True)
            for state in JobState
        ),
        TableColumn("recorded", "recorded", is_number=True),
        TableColumn("planned", "planned", is_number=True),
    )
    return DataTable(name, caption, columns, rows)


def parse_page_number(request: Request) -> int:
    """Which page of a long list is asked for, from 1.

    Raises:
        ConfigError: it is no such number.
    """
    text = request.query_params.get("page", "1")
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise ConfigError(f"page must be a number from 1 on, not {text[:40]!r}")
    return int(text)


def count_pages(count: int, each: int) -> int:
    """How many pages there are, at least one."""
    return max(-(-count // each), 1)


def past_last_page_text(page: int, many: int) -> str:
    """A sentence for a page after the last one; '' for one that there is."""
    return f"There is no page {page}; the last one is page {many}." if page > many else ""


def _count_or_dash(count: int) -> str:
    return str(count) if count else "–"
