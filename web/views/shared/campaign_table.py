"""Table of campaigns with their jobs by state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.read.overview_queries import CampaignState
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.shared.page_context import link_to


def campaign_table(
    name: str, caption: str, campaigns: Sequence[CampaignState], request: Request
) -> DataTable:
    """Build a table of campaigns with their jobs by state, linked to their pages."""
    rows: list[dict[str, Any]] = [
        {
            "campaign": campaign_state.campaign.name or campaign_state.campaign.id,
            "campaign_id": campaign_state.campaign.id,
            "test": campaign_state.campaign.test_name,
            "submitted_us": campaign_state.campaign.created_us,
            "last_run_us": campaign_state.last_run_us,
            **{state.value: campaign_state.jobs.get(state.value, 0) for state in JobState},
            "jobs": describe_states(campaign_state.jobs),
            "recorded": campaign_state.recorded,
            "planned": campaign_state.campaign.planned_measurements,
            **{outcome.key: campaign_state.outcomes.get(outcome, 0) for outcome in Outcome},
            "share": campaign_state.share_recorded,
        }
        for campaign_state in campaigns
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
        TableColumn("last_run_us", "last run", format_row=_format_last_run),
        TableColumn(
            "recorded",
            "measurements",
            format_row=lambda row: f"{row['recorded']:,} of {row['planned']:,}",
            is_number=True,
            bar=lambda row: row["share"],
        ),
        TableColumn("planned", hidden=True),
        *(
            TableColumn(outcome.key, outcome.value, is_number=True, hidden=outcome is Outcome.GOOD)
            for outcome in Outcome
        ),
        TableColumn("jobs", "jobs"),
        *hidden_columns(*(state.value for state in JobState)),
    )
    return DataTable(name, caption, columns, rows)


def _format_last_run(row: Row) -> str:
    return format_time(row["last_run_us"]) if row["last_run_us"] else "none yet"


def describe_states(jobs: Mapping[str, int]) -> str:
    """Write numbers of jobs by state, e.g. ``3 running, 2 done``; '' for none."""
    counts = ((jobs.get(state.value), state.value) for state in JobState)
    return ", ".join(f"{count} {state}" for count, state in counts if count)
