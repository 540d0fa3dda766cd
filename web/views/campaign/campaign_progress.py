"""Progress of a campaign."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from treehammer.collectors.job_state import JobState
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import CampaignCount, MeasurementCount
from treehammer.sql.write.store import Store
from treehammer.text_formatting import format_duration, pluralize
from treehammer.web.views.shared.campaign_table import describe_states


@dataclass(frozen=True)
class CampaignProgress:
    """Progress of a campaign.

    Attributes:
        count: its jobs and measurements.
        planned: planned measurements; known before the jobs are.
        remaining_s: expected seconds to completion at the current pace, None if unknown.
        as_of_us: latest start or end of a job known from its batch system, None before the first.
    """

    count: MeasurementCount
    planned: int
    remaining_s: float | None
    as_of_us: int | None

    @property
    def is_finished(self) -> bool:
        """Whether no further measurements are expected."""
        return self.count.is_finished or self.count.measured >= self.planned

    @property
    def sentence(self) -> str:
        """Progress as a sentence."""
        text = f"{replace(self.count, planned=self.planned).describe()}"
        if self.count.superseded:
            text += (
                f"; {pluralize(self.count.superseded, 'measurement')} repeated by later attempts"
            )
        text += f"; jobs: {describe_states(self.count.jobs) or 'none'}"
        if self.remaining_s is not None and not self.is_finished:
            text += f"; about {format_duration(self.remaining_s)} remaining at the current pace"
        return f"{text}."

    @property
    def no_failures_text(self) -> str:
        """Sentence shown if there are no known failures."""
        if not self.is_finished:
            return "No failures so far."
        missing = self.planned - self.count.measured
        if missing <= 0:
            return "No failures."
        planned = pluralize(self.planned, "planned measurement")
        text = f"No known failures, but {missing} of {planned} are missing"
        cancelled = self.count.jobs[JobState.CANCELLED.value]
        if cancelled:
            text += (
                f": {pluralize(cancelled, 'job')} {'was' if cancelled == 1 else 'were'} cancelled"
            )
        return f"{text}."

    def as_dict(self) -> dict[str, Any]:
        """Progress as a dictionary, for JSON."""
        return {
            "recorded": self.count.measured,
            "planned": self.planned,
            "failed": self.count.failed,
            "missing": dict(self.count.missing),
            "superseded": self.count.superseded,
            "jobs": dict(self.count.jobs),
            "remaining_s": self.remaining_s,
            "as_of_us": self.as_of_us,
            "over": self.is_finished,
        }


def make_progress(store: Store, campaign: CampaignRow, count: CampaignCount) -> CampaignProgress:
    """Make the progress of a campaign from its count."""
    span = campaign_queries.fetch_time_span_us(store, campaign.id)
    remaining_s = count.remaining_s
    if remaining_s is not None:
        # One significant digit: the estimate is not better, and the page should not flicker.
        remaining_s = float(f"{remaining_s:.1g}")
    planned = campaign.planned_measurements or count.total.planned
    return CampaignProgress(count.total, planned, remaining_s, span and span[1])
