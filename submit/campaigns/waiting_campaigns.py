"""Campaigns with missing measurements, collected before commands that answer from results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from treehammer.collectors.job_spec import FINAL_JOB_STATES
from treehammer.config import Settings
from treehammer.errors import TreehammerError
from treehammer.text_formatting import join_lines

if TYPE_CHECKING:
    from treehammer.sql.core.rows import CampaignRow
    from treehammer.sql.write.store import Store

#: Campaigns that are named, at most.
MAX_NAMED = 5


@dataclass(frozen=True)
class WaitingCampaign:
    """A campaign of which planned measurements are not in the database.

    Attributes:
        row: the campaign.
        missing: planned measurements that are not there.
        jobs: jobs that lack measurements, by state.
        is_here: whether this installation submitted it and has its jobs' output.
    """

    row: CampaignRow
    missing: int
    jobs: Mapping[str, int]
    is_here: bool

    def describe(self, *, collected: bool) -> str:
        """Describe the number of missing measurements, the reason and the remedy."""
        row = self.row
        jobs = ", ".join(f"{count} {state}" for state, count in self.jobs.items())
        text = f"{row.name} ({row.id}): {self.missing} of {row.planned_measurements} measurements"
        is_open = not FINAL_JOB_STATES.issuperset(self.jobs)
        if not self.is_here:
            return f"{text} are not in this database (jobs: {jobs}); their submitter collects them"
        if not collected:
            return (
                f"{text} wait or are not collected (jobs: {jobs}). "
                f"Collect them: treehammer collect {row.id}"
            )
        follow = " --follow" if is_open else ""
        state = "still wait" if is_open else "did not arrive, and all jobs have ended"
        return f"{text} {state} (jobs: {jobs}). See: treehammer status {row.id}{follow}"


def report_waiting(
    settings: Settings, references: Collection[str] = (), *, collect: bool = True
) -> list[str]:
    """Collect arrived results; return a line for each campaign with missing measurements.

    Args:
        settings: all settings.
        references: campaigns by identity, name or ``last``; all if there are none.
        collect: collect first.
    """
    from treehammer.sql.write.store import Store

    try:
        with Store.open(settings.database, create=False) as store:
            before = _list_waiting(store, settings, references)
            notes = list(_collect_campaigns(store, settings, before)) if collect else []
            after = _list_waiting(store, settings, references) if collect and before else before
    except TreehammerError:
        return []  # the command itself names the problem
    lines = [campaign.describe(collected=collect) for campaign in after[:MAX_NAMED]]
    if len(after) > MAX_NAMED:
        lines.append(f"and {len(after) - MAX_NAMED} more campaigns. See: treehammer status")
    return [*notes, *lines]


def _collect_campaigns(
    store: Store, settings: Settings, campaigns: Iterable[WaitingCampaign]
) -> Iterable[str]:
    """Collect the measurements of campaigns of this installation; yield problems."""
    from treehammer.submit.campaigns.campaign_polling import make_tracker

    tracker = make_tracker(store, settings)
    for campaign in campaigns:
        if campaign.is_here:
            try:
                tracker.update(campaign.row)
            except TreehammerError as error:
                yield f"{campaign.row.name}: not collected: {join_lines(str(error))}"


def _list_waiting(
    store: Store, settings: Settings, references: Collection[str]
) -> list[WaitingCampaign]:
    """List the campaigns that lack measurements, newest first.

    Without references, campaigns with open jobs and those with output on this machine are examined.
    """
    from treehammer.sql.read.campaign_queries import list_incomplete_campaigns

    own_ids = _list_own_campaigns(settings)
    if references:
        rows = list({row.id: row for row in map(store.campaign, references)}.values())
    else:
        rows = list_incomplete_campaigns(store, own_ids)
    examined = (_examine_campaign(store, row, row.id in own_ids) for row in rows)
    return [campaign for campaign in examined if campaign.missing]


def _examine_campaign(store: Store, row: CampaignRow, is_here: bool) -> WaitingCampaign:
    recorded: Counter[str] = Counter()
    for (job_id, _), count in store.count_by_attempt(row.id).items():
        recorded[job_id] = max(recorded[job_id], count)
    missing = 0
    jobs: Counter[str] = Counter()
    for job in store.jobs(row.id):
        lacking = max(0, job.planned_measurements - recorded[job.id])
        missing += lacking
        jobs[job.state] += bool(lacking)
    return WaitingCampaign(row, missing, +jobs, is_here)


def _list_own_campaigns(settings: Settings) -> frozenset[str]:
    """List the campaigns whose jobs have their output on this machine."""
    local = (path.name.partition("-")[2] for path in settings.spool_dir.glob("jobs/*-*"))
    submissions = glob("*/*/*/submission.json", root_dir=settings.htcondor_dir)
    pools = (Path(path).parent.parent.name for path in submissions)
    return frozenset((*local, *pools))
