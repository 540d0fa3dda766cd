"""Tracking of patrol campaigns, and settlement of their cost."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from treehammer.analysis.comparison.comparison_result import (
    compare_campaign_commits,
    compare_commits,
)
from treehammer.collectors.json_documents import parse_json
from treehammer.config import Settings
from treehammer.errors import TreehammerError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.core.watch_rows import PatrolChargeRow, PatrolStartRow
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_polling import (
    ExclusionGuard,
    list_stored_campaigns,
    make_tracker,
    poll_campaign,
    purge_campaign,
    retention_reason,
)
from treehammer.submit.campaigns.tracker import CampaignTracker
from treehammer.submit.planning.cost_estimate import READ_COLUMNS, measured_read_bytes
from treehammer.text_formatting import SECOND_US, format_size, join_lines, pluralize
from treehammer.watch.patrol.campaign_starts import PatrolRequest
from treehammer.watch.patrol.occasions import COMMIT, TURNS
from treehammer.watch.store.patrol_starts import FINISHED, PatrolStarts, SiteCharge

_LOG = logging.getLogger(__name__)
#: Seconds for which the uses of sites hold: a round follows hundreds of campaigns.
USES_AGE_S = 5.0

_COLUMNS = (
    "job_id",
    "site",
    "storage_site",
    "payload_user_s",
    "payload_sys_s",
    *READ_COLUMNS,
)


@dataclass
class SiteTally:
    """Running totals of a campaign at one site: of its jobs, and of the reads from its storage."""

    planned: int = 0
    cpu_s: float = 0.0
    bytes: int = 0
    with_cpu: int = 0
    with_bytes: int = 0
    never_started: int = 0


class CampaignSettlement:
    """Follows campaigns of a patrol until all jobs have ended, and settles them.

    Args:
        settings: all settings.
        store: the database.
        starts: the starts of the patrol.
    """

    def __init__(self, settings: Settings, store: Store, starts: PatrolStarts) -> None:
        self._settings = settings
        self._store = store
        self._starts = starts
        self._guard = ExclusionGuard(settings, USES_AGE_S)
        #: Of the campaigns in flight: what a tracker remembers of jobs ends with their campaign.
        self._trackers: dict[str, CampaignTracker] = {}

    def follow_all(self, starts: Iterable[PatrolStartRow], now_us: int) -> dict[str, str]:
        """Follow campaigns; return entry -> problem of those that could not be followed."""
        problems: dict[str, str] = {}
        for start in starts:
            try:
                self.follow(start, now_us)
            except TreehammerError as error:
                problems[start.entry] = join_lines(str(error))
                _LOG.warning("%s: campaign %s: %s", start.entry, start.campaign_id, error)
        return problems

    def follow(self, start: PatrolStartRow, now_us: int) -> None:
        """Bring a campaign up to date; settle it if all jobs have ended.

        Raises:
            TreehammerError: a batch system or the store refuses; the next call continues.
        """
        campaign = self._store.campaign(start.campaign_id)
        tracker = self._trackers.get(campaign.id) or make_tracker(
            self._store, self._settings, self._guard
        )
        self._trackers[campaign.id] = tracker
        tracker.foreign_s = 0.0  # a patrol follows its own, also after the loss of their folder
        progress = poll_campaign(tracker, campaign, _LOG.info)
        messages = [start.message]
        request = parse_json(PatrolRequest, start.request)
        limit_s = request.time_limit_s
        if not progress.is_finished:
            if now_us < start.claimed_us + limit_s * SECOND_US:
                return
            count = tracker.cancel(campaign)
            progress = poll_campaign(tracker, campaign, _LOG.info)
            messages.append(f"{count} jobs cancelled after {limit_s / 3600:g} h")
            if not progress.is_finished:
                return
        for line in tracker.upload_campaign(campaign, everything=True):
            _LOG.info("%s", line)
        failures = progress.total.describe_failures()
        if failures:
            _LOG.warning("%s: campaign %s: %s", start.entry, start.campaign_id, failures)
        self._compare_with_earlier_commit(start, now_us)
        charges = self._starts.charges(start.campaign_id)
        reads_elsewhere = bool(request.from_sites)
        tallies = tally_sites(self._store, campaign.id)
        used = measure_use(charges, tallies, reads_elsewhere=reads_elsewhere)
        message = "; ".join(filter(None, (*messages, failures)))
        if self._starts.settle(start, used, state=FINISHED, message=message):
            _LOG.info(
                "%s: campaign %s has ended", start.entry, start.campaign_id,
                extra={"entry": start.entry, "campaign": start.campaign_id},
            )  # fmt: skip
        del self._trackers[campaign.id]

    def purge_ended(self, ended_before_us: int) -> None:
        """Remove the working folders of the patrol's campaigns that ended before a time.

        Folders with rejected records stay.
        """
        tracker = make_tracker(self._store, self._settings)
        count, freed = 0, 0
        for campaign_id in sorted(list_stored_campaigns(self._settings)):
            start = self._starts.find_campaign(campaign_id)
            if start is None or not (start.finished_us or ended_before_us) < ended_before_us:
                continue
            campaign = self._store.campaign(campaign_id)
            try:
                if reason := retention_reason(tracker, campaign):
                    _LOG.warning("the folder of campaign %s stays: %s", campaign_id, reason)
                else:
                    freed += purge_campaign(tracker, campaign, self._settings)
                    count += 1
            except TreehammerError as error:
                _LOG.warning("campaign %s is not purged: %s", campaign_id, join_lines(str(error)))
        if count:
            _LOG.info("%s purged, %s", pluralize(count, "campaign"), format_size(freed))

    def _compare_with_earlier_commit(self, start: PatrolStartRow, now_us: int) -> None:
        """Compare a commit with an earlier one: in turns, or with the one before of the same entry."""
        try:
            if start.occasion.startswith(TURNS):
                commits = parse_json(PatrolRequest, start.request).axes[COMMIT_AXIS]
                compare_commits(self._store, (start.campaign_id,), commits, now_us)
            elif start.occasion.startswith(COMMIT):
                earlier = self._starts.find_earlier_start(start, COMMIT)
                if earlier is not None:
                    ids = earlier.campaign_id, start.campaign_id
                    compare_campaign_commits(self._store, *ids, now_us)
        except TreehammerError as error:
            _LOG.warning("%s: commits are not compared: %s", start.entry, error)


def tally_sites(store: Store, campaign_id: str) -> dict[str, SiteTally]:
    """Sum the jobs and measurements of a campaign by site."""
    tallies: dict[str, SiteTally] = defaultdict(SiteTally)
    jobs = store.jobs(campaign_id)
    started = {attempt.job_id for attempt in store.attempts(job.id for job in jobs)}
    for job in jobs:
        tallies[job.site].planned += job.planned_measurements
        if job.id not in started:
            tallies[job.site].never_started += job.planned_measurements
    selection = Selection(conditions=(Condition("campaign_id", "=", campaign_id),))
    for row in store.measurements(selection, _COLUMNS):
        runner = tallies[str(row["site"])]
        storage = tallies[str(row["storage_site"])]
        user, system = row["payload_user_s"], row["payload_sys_s"]
        if isinstance(user, float):
            runner.cpu_s += user + (system if isinstance(system, float) else 0.0)
            runner.with_cpu += 1
        size = measured_read_bytes(row)
        if size is not None:
            storage.bytes += size
            storage.with_bytes += 1
    return dict(tallies)


def measure_use(
    charges: Iterable[PatrolChargeRow],
    tallies: Mapping[str, SiteTally],
    *,
    reads_elsewhere: bool,
) -> dict[str, SiteCharge]:
    """Return the cost of a campaign at each site.

    Measurements that started without a result are charged with their share of the reservation. If
    jobs read the storage of other sites, that share of the bytes is the same for each storage,
    because the storage that a lost job would have read is unknown.
    """
    total = SiteTally()
    for site_tally in tallies.values():
        total.planned += site_tally.planned
        total.never_started += site_tally.never_started
        total.with_bytes += site_tally.with_bytes
    empty = SiteTally()
    used: dict[str, SiteCharge] = {}
    for row in charges:
        tally = tallies.get(row.site, empty)
        readers = total if reads_elsewhere else tally
        used[row.site] = SiteCharge(
            tally.cpu_s + _unmeasured_share(tally, tally.with_cpu) * row.reserved_cpu_s,
            tally.bytes
            + round(_unmeasured_share(readers, readers.with_bytes) * row.reserved_bytes),
        )
    return used


def _unmeasured_share(tally: SiteTally, measured: int) -> float:
    """Return the share of the planned measurements that started and lack a value."""
    if not tally.planned:
        return 1.0
    return max(0, tally.planned - tally.never_started - measured) / tally.planned
