"""The patrol: leads or stands by, completes, follows and starts campaigns."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from treehammer.analysis.status.site_uses import SiteUses, SubjectUse
from treehammer.collectors.json_documents import parse_json
from treehammer.collectors.shared_files import hold_lock
from treehammer.config import Settings
from treehammer.errors import (
    ConfigError,
    DefinitionError,
    MissingExtraError,
    SoftwareError,
    StoreError,
    TreehammerError,
    explain_missing_extra,
)
from treehammer.hctests.definition.model import DOOR_AXIS, RELEASE_AXIS
from treehammer.hctests.pinned_tests import EqualCommitsError, pin_test
from treehammer.sql.core.subjects import split_door_label
from treehammer.sql.core.watch_rows import PatrolEntryRow, PatrolStartRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.write.store import Store
from treehammer.text_formatting import SECOND_US, join_lines
from treehammer.verticals import import_parts
from treehammer.watch.alarms.alarm_watch import record_events
from treehammer.watch.alarms.release_checks import record_failed_release
from treehammer.watch.changes.change_points import update_changes
from treehammer.watch.patrol.campaign_settlement import CampaignSettlement
from treehammer.watch.patrol.campaign_starts import (
    CampaignStarter,
    PatrolRequest,
    StartSites,
    find_reruns,
    record_reruns,
    select_comparison_sites,
    select_entry_sites,
)
from treehammer.watch.patrol.occasions import (
    COMMIT,
    RELEASE,
    SERVER,
    TAG,
    TURNS,
    Occasion,
    OccasionFinder,
    find_turns,
    name_occasion,
)
from treehammer.watch.patrol.patrol_file import PatrolEntry, PatrolFile
from treehammer.watch.patrol.release_searches import ReleaseSearches
from treehammer.watch.states.site_status import find_probe_time, list_uses
from treehammer.watch.states.status_rules import load_status_rules
from treehammer.watch.store import patrol_report
from treehammer.watch.store.alarms import BISECT, STATE, ReleaseCheckTable
from treehammer.watch.store.patrol_starts import (
    CLAIMED,
    PROBE,
    STORED,
    SUBMITTED,
    Clock,
    LeaseLostError,
    PatrolLease,
    PatrolStarts,
)

_LOG = logging.getLogger(__name__)

#: Seconds between two rounds.
ROUND_S = 5.0
#: Shortest and longest delay in seconds before a refused or failed start is tried again.
RETRY_S, MAX_RETRY_S = 30, 1800
#: Kind of occasion -> errors of commits that cannot be compared in turns, and of builds without ROOT.
_FINAL_ERRORS = {
    TURNS: (EqualCommitsError, DefinitionError),
    BISECT: (SoftwareError, ConfigError),
}
#: Seconds between two evaluations of states and campaigns.
WATCH_S = 60
#: Seconds from the start to the first search for changes, and between two searches.
CHANGES_AFTER_S, CHANGES_EVERY_S = 3600, 86_400
#: Seconds between two looks for folders of campaigns that ended long ago.
PURGE_S = 3600


@dataclass
class _Retry:
    """Delay of an occasion that could not start."""

    delay_s: int
    next_us: int
    reason: str


class Patrol:
    """One patrol on a database; of several, one leads and the others stand by.

    Only the leader decides on starts. Each patrol follows the campaigns that it submitted, because
    a local queue belongs to its machine.

    Args:
        settings: all settings.
        file: the patrol file.
        store: the database.
        lease: lease on behalf of this patrol.
    """

    def __init__(
        self, settings: Settings, file: PatrolFile, store: Store, lease: PatrolLease
    ) -> None:
        self._settings = settings
        self._file = file
        self._store = store
        self._lease = lease
        self._starts = PatrolStarts(store, lease)
        self._starter = CampaignStarter(settings, store, self._starts, file)
        self._rules = load_status_rules(settings.status_rules)
        self._settlement = CampaignSettlement(settings, store, self._starts)
        self._finder = OccasionFinder(settings, file)
        self._searches = ReleaseSearches(settings, store, self._starts, file.releases)
        self._next_watch_us = 0
        self._next_purge_us = 0
        self._next_changes_us = self._read_clock() + CHANGES_AFTER_S * SECOND_US
        #: Entry -> occasions of the present round.
        self._reruns: Mapping[str, list[Occasion]] = {}
        self._probes: Mapping[str, list[Occasion]] = {}
        self._retries: dict[tuple[str, str], _Retry] = {}
        self._has_written_limits = False
        #: Entry -> remarks of the present round, each once.
        self._notes: defaultdict[str, dict[str, None]] = defaultdict(dict)
        #: Time of the newest check and number of ended searches, as published.
        self._published = (0, 0)

    def run_round(self, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Run one round: complete, follow, start. Returns whether this patrol leads.

        Args:
            is_stopping: whether to return before the next step.

        Raises:
            StoreError: the database refuses.
        """
        leads = self._lease.acquire()
        now_us = self._read_clock()
        self._complete_starts(now_us, leads=leads)
        held_starts = [
            start
            for start in self._starts.list_open()
            if start.state == SUBMITTED and start.holder == self._lease.holder
        ]
        problems = self._settlement.follow_all(held_starts, now_us)
        if now_us >= self._next_purge_us:
            self._next_purge_us = now_us + PURGE_S * SECOND_US
            kept_us = self._file.patrol.keep_folders * SECOND_US
            self._settlement.purge_ended(now_us - kept_us)
        if not leads or is_stopping():
            return leads
        try:
            self._lead(problems, is_stopping)
        except LeaseLostError as error:
            _LOG.warning("%s", error)
            return False
        return True

    def _read_clock(self) -> int:
        with self._store.connection() as connection:
            return self._lease.clock(connection)

    # Interrupted starts

    def _complete_starts(self, now_us: int, *, leads: bool) -> None:
        """Complete the starts that this patrol stored, and as the leader every claim."""
        for start in self._starts.list_open():
            if start.state == SUBMITTED or self._is_delayed(start.entry, start.occasion, now_us):
                continue
            claim: PatrolStartRow | None = start
            if start.state == CLAIMED and leads:
                try:
                    claim = self._starts.take_over(start)
                except LeaseLostError:
                    return
            elif start.state == CLAIMED or start.holder != self._lease.holder:
                continue
            if claim is not None:
                self._complete_start(claim, now_us)

    def _complete_start(self, start: PatrolStartRow, now_us: int) -> None:
        limit_us = parse_json(PatrolRequest, start.request).time_limit_s * SECOND_US
        if now_us <= start.claimed_us + limit_us:
            self._starter.submit(start)
            self._delay(start.entry, start.occasion, "its submission was interrupted", now_us)
        elif start.state == STORED:
            self._starts.mark_submitted(start, "not all jobs could be queued within the time limit")
        else:
            self._starter.give_up(start, "it could not be submitted within the time limit")

    # New starts

    def _lead(self, problems: dict[str, str], is_stopping: Callable[[], bool]) -> None:
        if not self._has_written_limits:
            self._write_limits()
        self._watch()
        self._notes.clear()
        for name, problem in problems.items():
            self._note(name, problem)
        uses = list_uses(self._store)
        self._reruns = find_reruns(self._store, self._starts, self._read_clock())
        self._probes = self._searches.find_probes(self._read_clock())
        for entry in self._file.entries.values():
            if is_stopping():
                return
            try:
                self._visit_entry(entry, uses)
            except LeaseLostError:
                raise
            except TreehammerError as error:
                self._note(entry.name, str(error))
        self._finder.update_servers(self._read_clock())
        now_us = self._read_clock()
        rows = [
            describe_entry(entry, line, now_us, "; ".join(self._notes[entry.name]))
            for line, entry in enumerate(self._file.entries.values())
        ]
        patrol_report.write_entries(self._store, self._lease, rows)

    def _note(self, entry: str, text: str) -> None:
        if line := join_lines(text):
            self._notes[entry][line] = None

    def _watch(self) -> None:
        """Evaluate states and campaigns once a minute, and record events."""
        now_us = self._read_clock()
        if now_us < self._next_watch_us:
            return
        self._next_watch_us = now_us + WATCH_S * SECOND_US
        record_reruns(self._store, self._starts, now_us)
        for event in record_events(self._store, self._rules, now_us):
            # The title of a changed state has its reason.
            for line in (event.title, *(event.text.splitlines() if event.kind != STATE else ())):
                _LOG.warning("%s", line)
        self._publish()
        if now_us >= self._next_changes_us:
            self._next_changes_us = now_us + CHANGES_EVERY_S * SECOND_US
            self._update_changes(now_us)

    def _publish(self) -> None:
        """Publish the site again if a check of a release is new or has changed, or a search ended."""
        folder = self._file.patrol.publish
        checks = ReleaseCheckTable(self._store).list_checks() if folder else []
        changed_us = max((check.changed_us for check in checks), default=0)
        news = (changed_us, self._searches.ended)
        if not checks or news == self._published:
            return
        self._published = news
        for part in import_parts("site_update"):
            try:
                summary = part.update_site(
                    self._settings, Path(folder), self._file.patrol.publish_address
                )
                _LOG.info("published: %s", summary)
            except TreehammerError as error:
                _LOG.warning("not published: %s", join_lines(str(error)))

    def _update_changes(self, now_us: int) -> None:
        """Search the daily series for changes; the next watch announces new ones."""
        now = datetime.fromtimestamp(now_us / SECOND_US, UTC)
        try:
            with explain_missing_extra():
                result = update_changes(self._store, now, control=self._settings.control_release)
        except MissingExtraError as error:
            _LOG.warning("changes were not searched: %s", error)
            return
        _LOG.info("%d series searched for changes, %d new", result.series, result.new)

    def _visit_entry(self, entry: PatrolEntry, uses: SiteUses) -> None:
        """Start the due campaigns of an entry at the sites that may be used, and probe the others.

        Raises:
            TreehammerError: an obstacle; the entry is tried again later.
        """
        now_us = self._read_clock()
        entry_sites = select_entry_sites(entry, self._settings)
        commit = self._finder.head_commit(entry, now_us)
        if entry.quiet.end_of_quiet(now_us) != now_us:
            self._note(entry.name, "quiet hours")
            return
        restrictions = entry_sites.list_restrictions(uses)
        usable = entry_sites.select_usable(uses)
        if entry.test_name in (self._rules.probes.tests or [entry.test_name]):
            self._probe_sites(entry, commit, entry_sites, uses)
            if usable is not None:
                for storage in usable.storage:
                    self._probe_doors(entry, commit, storage, usable.runners[:1], uses)
        message = "; ".join(
            f"without {name}: {site_uses[0].describe()}" for name, site_uses in restrictions.items()
        )
        self._note(entry.name, message)
        if entry.follows_servers:
            self._note(entry.name, self._finder.updates.problem)
        for occasion in self._find_occasions(entry, commit, now_us):
            sites = self._select_sites(entry, occasion, usable, uses)
            if sites is not None:
                self._start(entry, occasion, sites, message)

    def _select_sites(
        self, entry: PatrolEntry, occasion: Occasion, usable: StartSites | None, uses: SiteUses
    ) -> StartSites | None:
        """Select the sites of an occasion: one pair, those of turns, or all that may be used."""
        if occasion.name.startswith(TURNS):
            return select_comparison_sites(entry, self._settings, uses)
        if occasion.site:
            return usable and usable.select_pair(occasion.site, occasion.runner)
        return usable

    def _find_occasions(self, entry: PatrolEntry, commit: str, now_us: int) -> list[Occasion]:
        """List the occasions of an entry that have not started yet."""
        spec = entry.spec_at(commit)
        occasions: list[Occasion] = []
        if commit:
            occasions.append(Occasion(name_occasion(COMMIT, commit), now_us, spec))
            occasions += find_turns(self._starts, entry, commit, now_us)
        if entry.tags:
            occasions += self._drop_existing(entry, TAG, self._finder.find_tags(entry, now_us))
        if entry.follows_releases:
            releases = self._finder.find_releases(spec, now_us)
            occasions += self._drop_existing(entry, RELEASE, releases)
        if entry.follows_servers:
            servers = self._finder.find_servers(
                entry, spec, lambda: self._starter.list_read_doors(entry, spec), now_us
            )
            occasions += self._drop_existing(entry, SERVER, servers)
        occasions += self._reruns.get(entry.name, [])
        occasions += self._probes.get(entry.name, [])
        if entry.times is not None:
            slot = entry.times.latest_slot(now_us)
            occasions.append(Occasion(slot.name, slot.due_us, spec))
        existing = self._starts.find_existing(entry.name, [item.name for item in occasions])
        return [occasion for occasion in occasions if occasion.name not in existing]

    def _drop_existing(
        self, entry: PatrolEntry, kind: str, occasions: list[Occasion]
    ) -> list[Occasion]:
        """Note the tags, releases or versions that exist at the first look; they start no campaign."""
        first_look = kind + "begin"
        if self._starts.find_existing(entry.name, [first_look]):
            return occasions
        names = [occasion.name for occasion in occasions]
        texts = dict.fromkeys(names, "existed before the patrol began")
        self._starts.note_existing(entry.name, {first_look: "the patrol began to follow", **texts})
        return []

    def _probe_sites(
        self, entry: PatrolEntry, commit: str, entry_sites: StartSites, uses: SiteUses
    ) -> None:
        """Start the due probe of each site that is critical by the rules, through working doors."""
        restrictions = entry_sites.list_restrictions(uses)
        for name, site_uses in restrictions.items():
            probe = self._find_due_probe(entry, commit, name, site_uses)
            if probe is not None:
                pair = entry_sites.narrow_to(name, restrictions)
                has_choice = uses.have_working_doors(
                    pair.storage
                ) and not self._starter.list_named_doors(entry, probe.spec)
                pair = pair.leave_out_doors(uses, with_critical=has_choice)
                self._start(entry, probe, pair, f"probe of {name}", probe=True)

    def _probe_doors(
        self,
        entry: PatrolEntry,
        commit: str,
        storage: str,
        runners: tuple[str, ...],
        uses: SiteUses,
    ) -> None:
        """Start the due probe of each critical door of a storage that the entry or its test names."""
        for use in uses.restricted_doors(storage):
            door = split_door_label(use.site)[1]
            probe = self._find_due_probe(entry, commit, use.site, [use])
            if probe is not None and door in self._starter.list_named_doors(entry, probe.spec):
                probe = replace(probe, axes={DOOR_AXIS: (door,)})
                pair = StartSites((storage,), runners).leave_out_doors(uses, use.site)
                self._start(entry, probe, pair, f"probe of {use.site}", probe=True)

    def _find_due_probe(
        self, entry: PatrolEntry, commit: str, label: str, restrictions: Collection[SubjectUse]
    ) -> Occasion | None:
        """Find the due probe of a site or door; None if it has started or an earlier one runs."""
        due_us = find_probe_time(restrictions, self._rules.probes.every_us, self._read_clock())
        if due_us is None:
            return None
        probe = Occasion(name_occasion(PROBE, f"{label}:{due_us}"), due_us, entry.spec_at(commit))
        begin = name_occasion(PROBE, f"{label}:")
        is_running = any(
            start.entry == entry.name and start.occasion.startswith(begin)
            for start in self._starts.list_open()
        )
        has_started = is_running or self._starts.find_existing(entry.name, [probe.name])
        return None if has_started else probe

    def _start(
        self,
        entry: PatrolEntry,
        occasion: Occasion,
        sites: StartSites,
        message: str,
        *,
        probe: bool = False,
    ) -> None:
        now_us = self._read_clock()
        key = entry.name, occasion.name
        if self._is_delayed(*key, now_us):
            self._note(entry.name, self._retries[key].reason)
            return
        starts = (start for start in self._starts.list_open() if start.entry == entry.name)
        in_flight = sum(not start.occasion.startswith(PROBE) for start in starts)
        if not probe and in_flight >= entry.in_flight:
            self._note(entry.name, f"waits: in_flight = {entry.in_flight} reached")
            return
        try:
            reason = self._starter.start_campaign(
                entry, occasion, sites, now_us, probe=probe, message=message
            )
        except LeaseLostError:
            raise
        except TreehammerError as error:
            reason = str(error)
            if isinstance(error, _FINAL_ERRORS.get(occasion.kind, ())):
                # These commits and builds stay as they are, so another attempt would not help.
                _LOG.info("%s: %s: %s", entry.name, occasion.name, join_lines(reason))
                self._starts.note_existing(entry.name, {occasion.name: join_lines(reason)})
                reason = ""
            elif occasion.kind == RELEASE:
                remainder = _leave_out_release(occasion, error)
                if remainder is not None:
                    self._start(entry, remainder, sites, message)
                    return
                self._record_failure(entry, occasion, error, now_us)
        if reason:
            self._note(entry.name, f"waits: {reason}")
            self._delay(*key, f"waits: {reason}", now_us)
        else:
            self._retries.pop(key, None)

    def _record_failure(
        self, entry: PatrolEntry, occasion: Occasion, error: TreehammerError, now_us: int
    ) -> None:
        """Record a release that cannot be set up at a second attempt, which excludes a short fault."""
        roots = occasion.axes[RELEASE_AXIS]
        before = self._retries.get((entry.name, occasion.name))
        if before and before.reason.endswith(str(error)) and error.where == f"ROOT {roots[-1]}":
            name = pin_test(occasion.spec, self._settings).definition.test.name
            record_failed_release(self._store, name, roots, error.message, now_us)

    def _is_delayed(self, entry: str, occasion: str, now_us: int) -> bool:
        retry = self._retries.get((entry, occasion))
        return retry is not None and now_us < retry.next_us

    def _delay(self, entry: str, occasion: str, reason: str, now_us: int) -> None:
        """Delay the next attempt at a start; each time longer."""
        before = self._retries.get((entry, occasion))
        delay_s = min(MAX_RETRY_S, 2 * before.delay_s) if before else RETRY_S
        if before is None or before.reason != reason:
            _LOG.info("%s: %s: %s", entry, occasion, join_lines(reason))
        # Forget occasions of the past, which will not start any more.
        day_ago_us = now_us - 86_400 * SECOND_US
        self._retries = {k: v for k, v in self._retries.items() if v.next_us > day_ago_us}
        self._retries[entry, occasion] = _Retry(delay_s, now_us + delay_s * SECOND_US, reason)

    def _write_limits(self) -> None:
        names = {*self._file.budget.sites}
        for entry in self._file.entries.values():
            with suppress(TreehammerError):  # the entry's remark says why
                names |= {*select_entry_sites(entry, self._settings).names}
        limits = {name: self._file.budget.limits_of(name) for name in names}
        patrol_report.write_limits(self._store, self._lease, limits)
        self._has_written_limits = True


def _leave_out_release(occasion: Occasion, error: TreehammerError) -> Occasion | None:
    """Leave out an earlier release that cannot be set up; None if the error is not about one."""
    *earlier, release = occasion.axes[RELEASE_AXIS]
    usable = [root for root in earlier if error.where != f"ROOT {root}"]
    if len(usable) == len(earlier):
        return None
    return replace(occasion, axes={RELEASE_AXIS: (*usable, release)})


def describe_entry(entry: PatrolEntry, line: int, now_us: int, note: str) -> PatrolEntryRow:
    """Describe an entry with its next start by time; ``line`` is its position in the file."""
    next_us = None
    if entry.times is not None:
        next_us = entry.quiet.end_of_quiet(entry.times.next_slot(now_us).due_us) or None
    return PatrolEntryRow(
        name=entry.name,
        line=line,
        test=entry.shown_test,
        follows=entry.follows,
        sites=entry.shown_sites,
        every_s=entry.times.every_s if entry.times else None,
        in_flight=entry.in_flight,
        next_us=next_us,
        note=note,
        checked_us=now_us,
    )


@contextmanager
def renewed_lease(lease: PatrolLease) -> Iterator[None]:
    """Renew the lease in a thread while a round plans for a long time."""
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(lease.duration_s / 3):
            if lease.epoch:
                try:
                    lease.acquire()
                except StoreError as error:
                    _LOG.warning("the lease was not renewed: %s", error)

    thread = threading.Thread(target=renew, name="patrol lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def open_patrol(
    settings: Settings,
    file: PatrolFile,
    *,
    clock: Clock = read_clock,
    on_wait: Callable[[], object] | None = None,
) -> Iterator[Patrol]:
    """Open a patrol under the name of this machine and data folder.

    A second patrol with the same data folder waits until the first has ended. The lease is given
    back at the end.

    Args:
        settings: all settings.
        file: the patrol file.
        clock: the database's clock.
        on_wait: called before waiting for another process with the same data folder.
    """
    holder = f"{socket.gethostname()}:{settings.data_dir}"
    with (
        hold_lock(Path(settings.data_dir) / "patrol.lock", on_wait),
        Store.open(settings.database) as store,
    ):
        lease = PatrolLease(store, holder, clock=clock)
        with renewed_lease(lease):
            yield Patrol(settings, file, store, lease)
        lease.release()


def run_patrol(
    patrol: Patrol,
    stop: threading.Event,
    *,
    until_s: float | None = None,
    report: Callable[[str], None] = lambda _status: None,
) -> None:
    """Run rounds until ``stop`` is set; an unavailable database is waited for.

    Args:
        patrol: the patrol.
        stop: set to stop after the present step.
        until_s: end, in seconds since 1970 UTC; None for no end.
        report: receives the status after each round, and is called at least that often.
    """
    _LOG.info("patrol begins (process %d)", os.getpid())
    leads: bool | None = None
    while not stop.is_set() and (until_s is None or time.time() < until_s):
        try:
            now_leads = patrol.run_round(stop.is_set)
            if now_leads != leads:
                _LOG.info("leads" if now_leads else "stands by: another patrol leads")
            leads = now_leads
            report("leads" if leads else "stands by")
        except StoreError as error:
            _LOG.warning("the database is not available: %s", error)
            report("waits for the database")
        stop.wait(ROUND_S)
    _LOG.info("patrol ends; campaigns in flight continue")
