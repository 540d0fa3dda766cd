"""Campaigns with missing measurements, collected before commands that answer from results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treehammer.collectors.job_spec import FINAL_JOB_STATES, LOCAL_BATCH, JobState
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
        is_here: whether this installation submitted it and has its jobs' files.
        problem: why that is unknown; '' if it is known.
    """

    row: CampaignRow
    missing: int
    jobs: Mapping[str, int]
    is_here: bool
    problem: str = ""

    def describe(self, *, collected: bool) -> str:
        """Describe the number of missing measurements, the reason and the remedy."""
        row = self.row
        jobs = ", ".join(f"{count} {state}" for state, count in self.jobs.items())
        text = f"{row.name} ({row.id}): {self.missing} of {row.planned_measurements} measurements"
        is_open = not FINAL_JOB_STATES.issuperset(self.jobs)
        if not self.is_here:
            problem = f" (here: {self.problem})" if self.problem else ""
            is_cancelled = self.jobs.keys() == {JobState.CANCELLED.value}
            remedy = "" if is_cancelled else f"; their submitter collects them{problem}"
            return f"{text} are not in this database (jobs: {jobs}){remedy}"
        if not collected:
            return (
                f"{text} wait or are not collected (jobs: {jobs}). "
                f"Collect them: treehammer collect {row.id}"
            )
        follow = " --follow" if is_open else ""
        state = "still wait" if is_open else "did not arrive, and all jobs have ended"
        return f"{text} {state} (jobs: {jobs}). See: treehammer status {row.id}{follow}"


class OwnCampaigns:
    """Campaigns that this installation submitted: their jobs have files on this machine.

    Args:
        settings: all settings.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[str, tuple[frozenset[str], str]] = {}

    def find(self, batch_system: str) -> tuple[frozenset[str], str]:
        """Find those of a batch system, and why they are unknown; '' if they are known."""
        from treehammer.submit.sites.site_registry import open_batch_system

        if batch_system == LOCAL_BATCH and not self._settings.spool_dir.is_dir():
            return frozenset(), ""  # reading must not make the folder
        if batch_system not in self._found:
            try:
                batch = open_batch_system(batch_system, self._settings)
                self._found[batch_system] = frozenset(batch.list_campaigns()), ""
            except TreehammerError as error:
                self._found[batch_system] = frozenset(), join_lines(str(error))
        return self._found[batch_system]

    def list_all(self) -> frozenset[str]:
        """List those of all batch systems that sites use."""
        from treehammer.submit.sites.site_registry import load_sites

        names = {LOCAL_BATCH}
        with suppress(TreehammerError):  # the campaigns here need no sites file
            names |= {site.batch for site in load_sites(self._settings).values()}
        return frozenset().union(*(self.find(name)[0] for name in names))


def report_waiting(
    settings: Settings,
    references: Collection[str],
    *,
    collect: bool,
    names_waiting: bool,
) -> list[str]:
    """Collect arrived results; return a line for each campaign with missing measurements.

    Args:
        settings: all settings.
        references: campaigns by identity, name or ``last``; all if there are none.
        collect: collect first.
        names_waiting: name the campaigns; else only those that could not be collected.
    """
    from treehammer.sql.write.store import Store

    try:
        with Store.open(settings.database, create=False) as store:
            before = _list_waiting(store, settings, references)
            notes = list(_collect_campaigns(store, settings, before)) if collect else []
            if not names_waiting:
                return notes
            after = _list_waiting(store, settings, references) if collect and before else before
    except TreehammerError:
        return []  # the command itself names the problem
    lines = [campaign.describe(collected=collect) for campaign in after[:MAX_NAMED]]
    if len(after) > MAX_NAMED:
        lines.append(f"and {len(after) - MAX_NAMED} more campaigns. See: treehammer status")
    return [*notes, *lines]


def _collect_campaigns(
    store: Store, settings: Settings, campaigns: Iterable[WaitingCampaign]
) -> Iterator[str]:
    """Collect the measurements of campaigns of this installation; yield problems."""
    from treehammer.submit.campaigns.campaign_polling import make_tracker

    tracker = make_tracker(store, settings)
    for row in (campaign.row for campaign in campaigns if campaign.is_here):
        try:
            tracker.update(row)
        except TreehammerError as error:
            yield f"{row.name}: not collected: {join_lines(str(error))}"


def _list_waiting(
    store: Store, settings: Settings, references: Collection[str]
) -> list[WaitingCampaign]:
    """List the campaigns that lack measurements, newest first.

    Without references, campaigns with open jobs and those with output on this machine are examined.
    """
    from treehammer.sql.read.overview_queries import list_incomplete_campaigns

    owners = OwnCampaigns(settings)
    if references:
        rows = list({row.id: row for row in map(store.campaign, references)}.values())
    else:
        rows = list_incomplete_campaigns(store, owners.list_all())
    examined = (_examine_campaign(store, row, owners) for row in rows)
    return [campaign for campaign in examined if campaign.missing]


def _examine_campaign(store: Store, row: CampaignRow, owners: OwnCampaigns) -> WaitingCampaign:
    recorded: Counter[str] = Counter()
    for (job_id, _), count in store.count_by_attempt(row.id).items():
        recorded[job_id] = max(recorded[job_id], count)
    missing = 0
    jobs: Counter[str] = Counter()
    rows = store.jobs(row.id)
    for job in rows:
        lacking = max(0, job.planned_measurements - recorded[job.id])
        missing += lacking
        jobs[job.state] += bool(lacking)
    owned = [owners.find(name) for name in sorted({job.batch_system for job in rows})]
    is_here = any(row.id in ids for ids, _ in owned)
    problem = next((problem for _, problem in owned if problem), "")
    return WaitingCampaign(row, missing, +jobs, is_here, problem)
