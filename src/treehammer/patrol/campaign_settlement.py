"""Tracking of patrol campaigns, and settlement of their cost and of their sites' back-off."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.config import Settings
from treehammer.durations import SECOND_US
from treehammer.errors import TreehammerError
from treehammer.patrol.campaign_starts import PatrolRequest
from treehammer.patrol.patrol_file import BackOffRule
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.core.watch_rows import PatrolChargeRow, PatrolSiteRow, PatrolStartRow
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.watch.patrol_starts import FINISHED, PROBE, PatrolStarts, SiteCharge
from treehammer.sql.write.store import Store
from treehammer.submit.planning.cost_estimate import READ_COLUMNS, measured_read_bytes
from treehammer.submit.tracking.campaign_polling import make_tracker, poll_campaign
from treehammer.text_formatting import format_share, join_lines

_LOG = logging.getLogger(__name__)

_COLUMNS = (
    "job_id",
    "site",
    "storage_site",
    "payload_user_s",
    "payload_sys_s",
    *READ_COLUMNS,
    *OUTCOME_COLUMNS,
)
#: Failures of the test itself, which reflect on no site.
_TEST_FAILURES = ("payload", "data-check")


@dataclass
class SiteTally:
    """Running totals of a campaign at one site: of its jobs, and of the reads from its storage.

    ``not_blamed`` counts failures of the test and of other sites' storage; ``served`` and
    ``not_served`` count reads by jobs of other sites.
    """

    planned: int = 0
    good: int = 0
    not_blamed: int = 0
    served: int = 0
    not_served: int = 0
    cpu_s: float = 0.0
    bytes: int = 0
    with_cpu: int = 0
    with_bytes: int = 0
    never_started: int = 0

    @property
    def job_trouble(self) -> float | None:
        """Share of the planned measurements that failed, or are missing, through the site."""
        return 1 - (self.good + self.not_blamed) / self.planned if self.planned else None

    @property
    def storage_trouble(self) -> float | None:
        """Share of other sites' reads that failed through the storage; None without any."""
        reads = self.served + self.not_served
        return self.not_served / reads if reads else None


class CampaignSettlement:
    """Follows campaigns of a patrol until all jobs have ended, and settles them.

    Args:
        settings: all settings.
        store: the database.
        starts: the starts of the patrol.
        back_off: rule of the back-off from sites.
        storage_failures: failure classes that count against the storage that was read.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        starts: PatrolStarts,
        back_off: BackOffRule,
        storage_failures: Collection[str],
    ) -> None:
        self._store = store
        self._starts = starts
        self._back_off = back_off
        self._storage_failures = frozenset(storage_failures)
        self._tracker = make_tracker(store, settings)

    def follow(self, start: PatrolStartRow, now_us: int) -> bool:
        """Bring a campaign up to date; settle it if all jobs have ended. True if it is settled.

        Raises:
            TreehammerError: a batch system or the store refuses; the next call continues.
        """
        campaign = self._store.campaign(start.campaign_id)
        progress = poll_campaign(self._tracker, campaign, _LOG.info)
        messages = [start.message]
        limit_s = PatrolRequest.parse(start.request).time_limit_s
        if not progress.is_finished:
            if now_us < start.claimed_us + limit_s * SECOND_US:
                return False
            count = self._tracker.cancel(campaign)
            progress = poll_campaign(self._tracker, campaign, _LOG.info)
            messages.append(f"{count} jobs cancelled after {limit_s / 3600:g} h")
            if not progress.is_finished:
                return False
        for line in self._tracker.upload_campaign(campaign, everything=True):
            _LOG.info("%s", line)
        failures = progress.total.describe_failures()
        if failures:
            _LOG.warning("%s: campaign %s: %s", start.entry, start.campaign_id, failures)
        self._settle(start, campaign, "; ".join(filter(None, (*messages, failures))))
        return True

    def _settle(self, start: PatrolStartRow, campaign: CampaignRow, message: str) -> None:
        tallies = tally_sites(self._store, campaign.id, self._storage_failures)
        charges = self._starts.charges(start.campaign_id)
        reads_elsewhere = bool(PatrolRequest.parse(start.request).from_sites)
        used = measure_use(charges, tallies, reads_elsewhere=reads_elsewhere)
        judge = make_judge(start, tallies, self._back_off)
        if self._starts.settle(start, used, judge, state=FINISHED, message=message):
            _LOG.info(
                "%s: campaign %s has ended", start.entry, start.campaign_id,
                extra={"entry": start.entry, "campaign": start.campaign_id},
            )  # fmt: skip


def tally_sites(
    store: Store, campaign_id: str, storage_failures: Collection[str]
) -> dict[str, SiteTally]:
    """Sum the jobs and measurements of a campaign by site.

    Args:
        store: the database.
        campaign_id: the campaign.
        storage_failures: failure classes that count against the storage that was read.
    """
    tallies: dict[str, SiteTally] = defaultdict(SiteTally)
    jobs = store.jobs(campaign_id)
    started = {attempt.job_id for attempt in store.attempts(job.id for job in jobs)}
    for job in jobs:
        tallies[job.site].planned += job.planned_measurements
        if job.id not in started:
            tallies[job.site].never_started += job.planned_measurements
    selection = Selection(conditions=(Condition("campaign_id", "=", campaign_id),))
    for row in store.measurements(selection, _COLUMNS):
        here = tallies[str(row["site"])]
        storage = tallies[str(row["storage_site"] or row["site"])]
        _count_outcome(row, here, storage, storage_failures)
        user, system = row["payload_user_s"], row["payload_sys_s"]
        if isinstance(user, float):
            here.cpu_s += user + (system if isinstance(system, float) else 0.0)
            here.with_cpu += 1
        size = measured_read_bytes(row)
        if size is not None:
            storage.bytes += size
            storage.with_bytes += 1
    return dict(tallies)


def _count_outcome(
    row: Mapping[str, object],
    here: SiteTally,
    storage: SiteTally,
    storage_failures: Collection[str],
) -> None:
    """Count an outcome at the site of the job, and at another site whose storage it read."""
    is_good = classify_outcome(row) is Outcome.GOOD
    is_test_failure = row["failure_class"] in _TEST_FAILURES
    here.good += is_good
    here.not_blamed += is_test_failure
    if here is not storage:
        is_storage_failure = row["failure_class"] in storage_failures and not is_test_failure
        here.not_blamed += is_storage_failure
        storage.served += is_good
        storage.not_served += is_storage_failure


def measure_use(
    charges: Iterable[PatrolChargeRow],
    tallies: Mapping[str, SiteTally],
    *,
    reads_elsewhere: bool,
) -> dict[str, SiteCharge]:
    """Return the cost of a campaign at each site.

    What started and was not measured is charged with its share of the reservation. If jobs read the
    storage of other sites, that share of the bytes is the same for each storage, because it is not
    known which of them a lost job would have read.
    """
    total = SiteTally()
    for one in tallies.values():
        total.planned += one.planned
        total.never_started += one.never_started
        total.with_bytes += one.with_bytes
    nothing = SiteTally()
    used: dict[str, SiteCharge] = {}
    for row in charges:
        tally = tallies.get(row.site, nothing)
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


def _find_trouble(tallies: Mapping[str, SiteTally], rule: BackOffRule) -> dict[str, float]:
    """Return the share of trouble of each site about which a campaign says something."""
    found: dict[str, float] = {}
    for shares in (
        {site: tally.job_trouble for site, tally in tallies.items()},
        {site: tally.storage_trouble for site, tally in tallies.items()},
    ):
        known = {site: share for site, share in shares.items() if share is not None}
        # If every one of several sites fails, the cause is the test or something central.
        if len(known) > 1 and all(share >= rule.failed_share for share in known.values()):
            continue
        for site, share in known.items():
            found[site] = max(share, found.get(site, 0.0))
    return found


def make_judge(
    start: PatrolStartRow, tallies: Mapping[str, SiteTally], rule: BackOffRule
) -> Callable[[PatrolSiteRow, int], PatrolSiteRow]:
    """Return a function that updates the back-off of a site after a campaign."""
    trouble = _find_trouble(tallies, rule)
    is_probe = start.occasion.startswith(PROBE)

    def judge(site: PatrolSiteRow, now_us: int) -> PatrolSiteRow:
        # A campaign that began before the last change shows an earlier state of the site.
        if start.claimed_us < site.changed_us:
            return site
        share = trouble.get(site.site)
        if share is None:
            # A probe that failed through its partner or the test is repeated.
            return _delay_probe(site, rule, now_us) if is_probe and site.failures else site
        if share >= rule.failed_share:
            reason = f"{format_share(share)} of campaign {start.campaign_id} failed"
            worse = replace(site, failures=site.failures + 1, reason=reason)
            return _delay_probe(worse, rule, now_us)
        if site.failures:
            return replace(site, failures=0, probe_us=None, changed_us=now_us, reason="")
        return site

    return judge


def _delay_probe(site: PatrolSiteRow, rule: BackOffRule, now_us: int) -> PatrolSiteRow:
    probe_us = now_us + rule.delay_s(site.failures) * SECOND_US
    return replace(site, probe_us=probe_us, changed_us=now_us)


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
