"""History that a patrol recorded, compared with the events that were planted at its sites."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import Any

import sqlalchemy as sa

from treehammer.analysis.status.site_uses import Usability
from treehammer.sql.core.schema import patrol_start
from treehammer.sql.core.subjects import SITE, SUBJECT_KINDS
from treehammer.sql.core.watch_rows import PatrolStartRow, ReleaseCheck, StatusChangeRow
from treehammer.sql.engine.database_engine import load_rows
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.text_formatting import SECOND_US
from treehammer.watch.alarms.alarm_overview import CheckState
from treehammer.watch.states.site_status import use_by_state
from treehammer.watch.store.alarms import ReleaseCheckTable
from treehammer.watch.store.patrol_report import load_report
from treehammer.watch.store.patrol_starts import PROBE, PatrolLease, PatrolStarts
from treehammer.watch.store.state_history import list_state_changes

#: Sites of the events.
BROKEN, UPGRADED, SLOWED, CHANGED = "SITE_B", "SITE_C", "SITE_D", "SITE_A"
IN_DOWNTIME, OVERRIDDEN = "SITE_E", "SITE_F"
#: Site -> events there, each with the state that it causes and its title.
EXPECTED_STATES: Mapping[str, Sequence[tuple[str, str, str]]] = {
    BROKEN: (("break", "critical", "storage stopped"), ("repair", "ok", "repaired")),
    SLOWED: (("slow", "warning", "storage slowed"), ("restore", "ok", "full speed again")),
    IN_DOWNTIME: (
        ("downtime", "downtime", "downtime announced"),
        ("downtime ends", "ok", "downtime ends"),
    ),
    OVERRIDDEN: (
        ("override", "critical", "set to critical"),
        ("end override", "ok", "override ended"),
    ),
}
#: Time of a patrol's round, in which a campaign may be planned before a decision and started after.
ROUND_US = 20 * SECOND_US
FOREVER_US = 2**62
_KIND_NAMES = dict(zip(SUBJECT_KINDS, ("jobs", "storage"), strict=True))


@dataclass(frozen=True)
class StoryRow:
    """Planted event with its verdict.

    Attributes:
        minute: time of the event since the patrol began.
        planted: the event, at which site.
        expected: the verdict that it should have; '' for none.
        verdict: the recorded verdict.
        holds_after_s: delay of the time since which the verdict holds.
        decided_after_s: delay of its recording.
        reason: the engine's reason.
    """

    minute: float
    planted: str
    expected: str
    verdict: str
    holds_after_s: float | None
    decided_after_s: float | None
    reason: str

    @property
    def correct(self) -> bool:
        """Whether the expected verdict was recorded, and not before the event."""
        return self.expected == self.verdict and (self.holds_after_s or 0) >= 0


class StoryExamination:
    """Compares the recorded history with the planted events.

    Args:
        store: the database of the patrol.
        planted: time of each event, microseconds since 1970 UTC; ``begin`` is that of the patrol.
        messages: messages of alarms with their times.
        slower_commit: the commit that makes the payload slower.
    """

    def __init__(
        self,
        store: Store,
        planted: Mapping[str, int],
        messages: Sequence[tuple[int, Mapping[str, Any]]],
        slower_commit: str,
    ) -> None:
        self._store = store
        self._planted = planted
        self._messages = messages
        self._slower_commit = slower_commit

    def examine(self, sites: Iterable[str]) -> tuple[list[StoryRow], list[str]]:
        """Return the events with their verdicts, and the verdicts that no event caused."""
        rows, unplanned = self._compare_states(sites)
        rows += [self._find_version_mark(), *self._follow_regression()]
        return sorted(rows, key=lambda row: row.minute), unplanned

    def list_jobs_at_excluded_sites(self) -> list[str]:
        """List campaigns but probes that were started at sites while they were not usable.

        Prints the number of jobs at each site while it was not usable. A start within a round of
        the decision had been planned before.
        """
        wrong: list[str] = []
        message_counts: Counter[tuple[str, str]] = Counter()
        with self._store.connection() as connection:
            rows = load_rows(connection, PatrolStartRow, sa.select(patrol_start))
        starts = {row.campaign_id: row for row in rows if row.campaign_id}
        for change, end_us in self._list_restrictions():
            use = use_by_state(change)
            for start in starts.values():
                jobs = [job for job in self._store.jobs(start.campaign_id) if job.site == use.site]
                if not jobs or not change.decided_us + ROUND_US < start.claimed_us < end_us:
                    continue
                is_probe = start.occasion.startswith(PROBE)
                message_counts[use.site, "probes" if is_probe else "other jobs"] += len(jobs)
                if not is_probe or use.usability is Usability.EXCLUDED:
                    wrong.append(
                        f"{start.occasion}: {len(jobs)} jobs at {use.site} while {use.describe()}"
                    )
        print(f"  jobs sent to sites that were not usable: {dict(message_counts)}")
        return wrong

    def _list_restrictions(self) -> Iterator[tuple[StatusChangeRow, int]]:
        """Yield the states of jobs that restrict the use of a site, each with its end."""
        by_site: dict[str, list[StatusChangeRow]] = defaultdict(list)
        for change in list_state_changes(self._store):
            if change.subject_kind == SITE:
                by_site[change.site].append(change)
        for changes in by_site.values():
            for change, following in zip_longest(changes, changes[1:]):
                if use_by_state(change).usability is not Usability.USABLE:
                    yield change, following.decided_us if following else FOREVER_US

    def _compare_states(self, sites: Iterable[str]) -> tuple[list[StoryRow], list[str]]:
        """Compare each site's states, of jobs and of storage, with the planted ones."""
        changes = list_state_changes(self._store)
        by_subject: dict[tuple[str, str], list[StatusChangeRow]] = defaultdict(list)
        for change in changes:
            by_subject[change.site, change.subject_kind].append(change)
        rows: list[StoryRow] = []
        unplanned = [
            f"not planted: central event: {change.reason}"
            for change in changes
            if change.subject_kind not in SUBJECT_KINDS
        ]
        for site, (kind, name) in product(sites, _KIND_NAMES.items()):
            recorded = iter(by_subject[site, kind])
            for event, state, text in (
                ("begin", "ok", "patrol begins"),
                *EXPECTED_STATES.get(site, ()),
            ):
                title = f"{site}, {name}: {text}"
                rows.append(self._compare_state(event, title, state, next(recorded, None)))
            unplanned += [
                f"not planted: {site} {name}: {change.previous} -> {change.state} at "
                f"{self._minute(change.since_us):.1f} min: {change.reason}"
                for change in recorded
            ]
        return rows, unplanned

    def _compare_state(
        self, event: str, title: str, state: str, change: StatusChangeRow | None
    ) -> StoryRow:
        if change is None:
            return self._make_row(event, title, state, "none")
        times = change.since_us, change.decided_us
        return self._make_row(event, title, state, change.state, *times, change.reason)

    def _make_row(
        self,
        event: str,
        title: str,
        expected: str,
        verdict: str,
        since_us: int | None = None,
        decided_us: int | None = None,
        reason: str = "",
    ) -> StoryRow:
        planted_us = self._planted[event]

        def delay(time_us: int | None) -> float | None:
            return None if time_us is None else round((time_us - planted_us) / SECOND_US, 1)

        minute = round(self._minute(planted_us), 2)
        return StoryRow(
            minute, title, expected, verdict, delay(since_us), delay(decided_us), reason
        )

    def _minute(self, time_us: int) -> float:
        return (time_us - self._planted["begin"]) / SECOND_US / 60

    def _find_version_mark(self) -> StoryRow:
        """Find the first measurement with the version to which the server was upgraded."""
        selection = Selection(conditions=(Condition("site", "=", UPGRADED),))
        columns = ("started_us", "ended_us", "server_version")
        rows = [tuple(row.values()) for row in self._store.measurements(selection, columns)]
        rows.sort(key=lambda row: int(str(row[0])))
        versions = list(dict.fromkeys(version for *_, version in rows))
        title, reason = f"{UPGRADED}: server upgraded", " -> ".join(map(str, versions))
        if len(versions) != 2:
            return self._make_row("upgrade", title, "mark", "none", reason=reason)
        started, ended, _ = next(row for row in rows if row[-1] == versions[-1])
        times = int(str(started)), int(str(ended))
        return self._make_row("upgrade", title, "mark", "mark", *times, reason)

    def _follow_regression(self) -> list[StoryRow]:
        """Follow the slower commit: suspected, confirmed by the patrol's rerun, announced."""
        title = f"{CHANGED}: slower payload committed: "
        first = self._make_row("commit", f"{title}first run", "suspected", "none")
        rerun = self._make_row("commit", f"{title}rerun", "confirmed", "none")
        confirmed_us = None
        if check := self._find_check():
            suspected = "suspected" if check.slower else str(check.state)
            first = self._make_row(
                "commit", first.planted, "suspected", suspected, None, check.checked_us, check.text
            )
            rerun_us = self._find_rerun(check)
            verdict = str(check.state) if rerun_us else "none"
            reason = "rerun started by the patrol" if rerun_us else ""
            rerun = self._make_row(
                "commit", rerun.planted, "confirmed", verdict, rerun_us, check.changed_us, reason
            )
            if check.state == CheckState.CONFIRMED:
                confirmed_us = check.changed_us
        return [first, rerun, self._follow_message(f"{title}message", confirmed_us)]

    def _find_check(self) -> ReleaseCheck | None:
        """Find the patrol's check of the slower commit."""
        starts = PatrolStarts(self._store, PatrolLease(self._store, "reader"))
        start = starts.find_start("idea", f"commit:{self._slower_commit}")
        if start is None:
            return None
        checks = ReleaseCheckTable(self._store).list_checks()
        return next((check for check in checks if check.campaign_id == start.campaign_id), None)

    def _find_rerun(self, check: ReleaseCheck) -> int | None:
        """Find the time at which the patrol claimed the rerun of a check."""
        reruns = (
            start.claimed_us
            for start in load_report(self._store).starts
            if start.campaign_id == check.rerun_id and start.occasion.startswith("rerun:")
        )
        return next(reruns, None)

    def _follow_message(self, title: str, confirmed_us: int | None) -> StoryRow:
        """Check that the regression was announced once, after it was confirmed."""
        times_us = [
            time_us for time_us, message in self._messages if message["kind"] == "regression"
        ]
        once = len(times_us) == 1 and confirmed_us is not None and times_us[0] >= confirmed_us
        verdict = "announced once" if once else f"{len(times_us)} messages"
        decided_us = times_us[0] if times_us else None
        return self._make_row("commit", title, "announced once", verdict, None, decided_us)
