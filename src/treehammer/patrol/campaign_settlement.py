"""Tracking of patrol campaigns, and settlement of their cost and of their sites' back-off."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.config import Settings
from treehammer.errors import TreehammerError
from treehammer.patrol.campaign_starts import PatrolRequest
from treehammer.patrol.patrol_file import BackOffRule
from treehammer.patrol.start_times import US
from treehammer.sql.core.rows import CampaignRow, PatrolChargeRow, PatrolSiteRow, PatrolStartRow
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.watch.patrol_starts import FINISHED, PatrolStarts, SiteCharge
from treehammer.sql.write.store import Store
from treehammer.submit.tracking.campaign_polling import make_tracker, poll_campaign
from treehammer.text_formatting import format_share, join_lines

_LOG = logging.getLogger(__name__)

_COLUMNS = (
    "job_id",
    "site",
    "storage_site",
    "payload_user_s",
    "payload_sys_s",
    "stagein_bytes",
    "bytes_read",
    "bytes_read_extra",
    "passes_done",
    *OUTCOME_COLUMNS,
)
#: Failures of the test itself, which reflect on no site.
_TEST_FAILURES = ("payload", "data-check")


@dataclass
class _SiteTally:
    """Running totals of a campaign at one site."""

    planned: int = 0
    good: int = 0
    test_failures: int = 0
    cpu_s: float = 0.0
    bytes: int = 0
    with_cpu: int = 0
    with_bytes: int = 0
    never_started: int = 0

    @property
    def trouble_share(self) -> float:
        """Share of the planned measurements that failed, or are missing, through the site."""
        return 1 - (self.good + self.test_failures) / self.planned if self.planned else 0.0


class CampaignSettlement:
    """Follows campaigns of a patrol until all jobs have ended, and settles them."""

    def __init__(
        self, settings: Settings, store: Store, starts: PatrolStarts, back_off: BackOffRule
    ) -> None:
        self._store = store
        self._starts = starts
        self._back_off = back_off
        self._tracker = make_tracker(store, settings)

    def follow(self, start: PatrolStartRow, now_us: int) -> bool:
        """Bring a campaign up to date; settle it if all jobs have ended. True if it is settled.

        Raises:
            TreehammerError: a batch system or the store refuses; the next call continues.
        """
        campaign = self._store.campaign(start.campaign_id)
        progress = poll_campaign(self._tracker, campaign, _LOG.info)
        message = ""
        limit_s = PatrolRequest.parse(start.request).time_limit_s
        if not progress.is_finished:
            if now_us < start.claimed_us + limit_s * US:
                return False
            count = self._tracker.cancel(campaign)
            progress = poll_campaign(self._tracker, campaign, _LOG.info)
            message = f"{count} jobs cancelled after {limit_s / 3600:g} h"
            if not progress.is_finished:
                return False
        for line in self._tracker.upload_campaign(campaign, everything=True):
            _LOG.info("%s", line)
        self._settle(start, campaign, message)
        return True

    def _settle(self, start: PatrolStartRow, campaign: CampaignRow, message: str) -> None:
        tallies = self._tally_sites(campaign)
        charges = self._starts.charges(start.campaign_id)
        used = {row.site: _measure_use(row, tallies.get(row.site)) for row in charges}
        judge = _make_judge(start, tallies, self._back_off)
        if self._starts.settle(start, used, judge, state=FINISHED, message=message):
            _LOG.info("%s: campaign %s has ended", start.entry, start.campaign_id)

    def _tally_sites(self, campaign: CampaignRow) -> dict[str, _SiteTally]:
        tallies: dict[str, _SiteTally] = defaultdict(_SiteTally)
        jobs = self._store.jobs(campaign.id)
        started = {attempt.job_id for attempt in self._store.attempts(job.id for job in jobs)}
        for job in jobs:
            tallies[job.site].planned += job.planned_measurements
            if job.id not in started:
                tallies[job.site].never_started += job.planned_measurements
        selection = Selection(conditions=(Condition("campaign_id", "=", campaign.id),))
        for row in self._store.measurements(selection, _COLUMNS):
            here = tallies[str(row["site"])]
            here.good += classify_outcome(row) is Outcome.GOOD
            here.test_failures += row["failure_class"] in _TEST_FAILURES
            user, system = row["payload_user_s"], row["payload_sys_s"]
            if isinstance(user, float):
                here.cpu_s += user + (system if isinstance(system, float) else 0.0)
                here.with_cpu += 1
            size = _measured_bytes(row)
            if size is not None:
                storage = tallies[str(row["storage_site"] or row["site"])]
                storage.bytes += size
                storage.with_bytes += 1
        return dict(tallies)


def _measured_bytes(row: Mapping[str, object]) -> int | None:
    """Return the bytes that an execution took from the storage; None if they were not measured."""
    staged, once, passes = row["stagein_bytes"], row["bytes_read"], row["passes_done"]
    if isinstance(staged, int) and staged:
        return staged
    if isinstance(once, int) and isinstance(passes, int):
        extra = row["bytes_read_extra"]
        return passes * (once + (extra if isinstance(extra, int) else 0))
    return None


def _measure_use(charge: PatrolChargeRow, tally: _SiteTally | None) -> SiteCharge:
    """Return the cost of a campaign at a site.

    What started and was not measured is charged with its share of the reservation.
    """
    if tally is None or not tally.planned:
        return SiteCharge(charge.reserved_cpu_s, charge.reserved_bytes)
    started = tally.planned - tally.never_started
    cpu_share = max(0, started - tally.with_cpu) / tally.planned
    bytes_share = max(0, started - tally.with_bytes) / tally.planned
    return SiteCharge(
        tally.cpu_s + cpu_share * charge.reserved_cpu_s,
        tally.bytes + round(bytes_share * charge.reserved_bytes),
    )


def _make_judge(
    start: PatrolStartRow, tallies: Mapping[str, _SiteTally], rule: BackOffRule
) -> Callable[[PatrolSiteRow, int], PatrolSiteRow]:
    """Return a function that updates the back-off of a site after a campaign."""
    shares = {site: tally.trouble_share for site, tally in tallies.items() if tally.planned}
    # If every one of several sites fails, the cause is the test or something central.
    everywhere = len(shares) > 1 and all(share >= rule.failed_share for share in shares.values())

    def judge(site: PatrolSiteRow, now_us: int) -> PatrolSiteRow:
        share = shares.get(site.site)
        # A campaign that began before the last change shows an earlier state of the site.
        if share is None or everywhere or start.claimed_us < site.changed_us:
            return site
        if share >= rule.failed_share:
            failures = site.failures + 1
            probe_us = now_us + rule.delay_s(failures) * US
            reason = f"{format_share(share)} of campaign {start.campaign_id} failed"
            return replace(
                site, failures=failures, probe_us=probe_us, changed_us=now_us, reason=reason
            )
        if site.failures:
            return replace(site, failures=0, probe_us=None, changed_us=now_us, reason="")
        return site

    return judge


def follow_all(
    settlement: CampaignSettlement, starts: list[PatrolStartRow], now_us: int
) -> dict[str, str]:
    """Follow campaigns; return entry -> problem of those that could not be followed."""
    problems: dict[str, str] = {}
    for start in starts:
        try:
            settlement.follow(start, now_us)
        except TreehammerError as error:
            problems[start.entry] = join_lines(str(error))
            _LOG.warning("%s: campaign %s: %s", start.entry, start.campaign_id, error)
    return problems
