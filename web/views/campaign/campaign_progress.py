"""Progress of a campaign."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treehammer.collectors.job_state import JobState
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.write.store import Store
from treehammer.text_formatting import format_duration, pluralize
from treehammer.web.views.shared.campaign_table import describe_states


@dataclass(frozen=True)
class CampaignProgress:
    """Progress of a campaign.

    Attributes:
        recorded: measurements in the database.
        planned: planned measurements.
        jobs: number of jobs by state.
        remaining_s: expected seconds to completion at the current pace, None if unknown.
        as_of_us: latest start or end of a job known from its batch system, None before the first.
    """

    recorded: int
    planned: int
    jobs: Mapping[str, int]
    remaining_s: float | None
    as_of_us: int | None

    @property
    def is_finished(self) -> bool:
        """Whether no further measurements are expected."""
        return all(JobState(state).is_final for state in self.jobs) or self.recorded >= self.planned

    @property
    def sentence(self) -> str:
        """Progress as a sentence."""
        text = f"{self.recorded} of {pluralize(self.planned, 'measurement')} recorded"
        if self.recorded > self.planned:
            text = (
                f"{pluralize(self.recorded, 'measurement')} recorded, {self.planned} planned "
                "(some jobs ran again)"
            )
        text += f"; jobs: {describe_states(self.jobs) or 'none'}"
        if self.remaining_s is not None and not self.is_finished:
            text += f"; about {format_duration(self.remaining_s)} remaining at the current pace"
        return f"{text}."

    @property
    def no_failures_text(self) -> str:
        """Sentence shown if there are no known failures."""
        if not self.is_finished:
            return "No failures so far."
        missing = self.planned - self.recorded
        if missing <= 0:
            return "No failures."
        planned = pluralize(self.planned, "planned measurement")
        text = f"No known failures, but {missing} of {planned} are missing"
        cancelled = self.jobs.get(JobState.CANCELLED.value, 0)
        if cancelled:
            text += (
                f": {pluralize(cancelled, 'job')} {'was' if cancelled == 1 else 'were'} cancelled"
            )
        return f"{text}."

    def as_dict(self) -> dict[str, Any]:
        """Progress as a dictionary, for JSON."""
        return {**vars(self), "over": self.is_finished}


def load_progress(
    store: Store, campaign: CampaignRow, states: Mapping[str, Mapping[str, int]], recorded: int
) -> CampaignProgress:
    """Load the progress of a campaign, with the time that remains at the current pace.

    Args:
        store: the database.
        campaign: the campaign.
        states: number of jobs by site and state.
        recorded: measurements in the database.
    """
    jobs: Counter[str] = Counter()
    for jobs_at_site in states.values():
        jobs.update(jobs_at_site)
    span = campaign_queries.fetch_time_span_us(store, campaign.id)
    planned, remaining_s = campaign.planned_measurements, None
    if span and 0 < recorded < planned:
        remaining_s = (time.time() - span[0] / 1e6) / recorded * (planned - recorded)
        # One significant digit: the estimate is not better, and the page should not flicker.
        remaining_s = float(f"{remaining_s:.1g}")
    return CampaignProgress(recorded, planned, jobs, remaining_s, span and span[1])
