"""The list of campaigns, the newest first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.errors import ConfigError
from treehammer.sql import campaigns
from treehammer.sql.overview import CampaignState
from treehammer.sql.store import Store
from treehammer.submit.batch.base import JobState
from treehammer.web.pages.context import PageContext, View, link_to
from treehammer.web.pages.tables import Column, Table
from treehammer.web.templating import moment

#: Campaigns on a page.
EACH = 20


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the list."""
    return [context.page("/campaigns", view, "campaigns")]


def view(store: Store, request: Request) -> View:
    """What the list shows."""
    number = page_number(request)
    found, count = campaigns.listed(store, (number - 1) * EACH, EACH)
    many = pages(count, EACH)
    table = campaign_table("campaigns", "Campaigns, the newest first", found, request)
    table = replace(table, empty=beyond(number, many))
    values = {"page": number, "pages": many, "count": count}
    return View("campaigns.html.j2", "Campaigns", values, (table,))


def campaign_table(
    name: str, caption: str, found: Sequence[CampaignState], request: Request
) -> Table:
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
        Column(
            "campaign",
            "campaign",
            long=True,
            link=lambda row: link_to(request, "campaign", campaign_id=row["campaign_id"]),
        ),
        Column("campaign_id", hidden=True),
        Column("test", "test"),
        Column("submitted_us", "submitted", moment),
        *(Column(state.value, state.value, _some, number=True) for state in JobState),
        Column("recorded", "recorded", number=True),
        Column("planned", "planned", number=True),
    )
    return Table(name, caption, columns, rows)


def page_number(request: Request) -> int:
    """Which page of a long list is asked for, from 1.

    Raises:
        ConfigError: it is no such number.
    """
    text = request.query_params.get("page", "1")
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise ConfigError(f"page must be a number from 1 on, not {text[:40]!r}")
    return int(text)


def pages(count: int, each: int) -> int:
    """How many pages there are, at least one."""
    return max(-(-count // each), 1)


def beyond(page: int, many: int) -> str:
    """A sentence for a page after the last one; '' for one that there is."""
    return f"There is no page {page}; the last one is page {many}." if page > many else ""


def _some(count: int) -> str:
    return str(count) if count else "–"
