"""Table of campaigns with their jobs by state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from treehammer.collectors.job_state import JobState
from treehammer.sql.read.overview_queries import CampaignState
from treehammer.web.display.data_tables import DataTable, TableColumn
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.shared.page_context import link_to


def campaign_table(
    name: str, caption: str, campaigns: Sequence[CampaignState], request: Request
) -> DataTable:
    """Build a table of campaigns with their jobs by state, linked to their pages."""
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
        for one in campaigns
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


def _count_or_dash(count: int) -> str:
    return str(count) if count else "–"
