"""States of all sites over time, from their rules, downtimes, overrides and central events.

In a central event most sites turn critical at once, which is not the fault of any of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from treehammer.analysis.status.site_uses import WORST_FIRST, SiteState
from treehammer.sql.core.evidence import StateEvidence
from treehammer.sql.core.subjects import CENTRAL, SUBJECT_KINDS
from treehammer.sql.core.watch_rows import DowntimeRow, OverrideRow, StatusChangeRow
from treehammer.watch.states.rule_judgements import ReplayWindow
from treehammer.watch.states.status_rules import CentralTable, StatusRules, duration_us


class Subject(NamedTuple):
    """A site of jobs, a storage site, or a door by its label."""

    kind: str
    site: str


#: Causes of states that no rule decided.
DOWNTIME, OVERRIDE, CENTRAL_CAUSE, TOO_FEW = "downtime", "override", "central", "too-few"


class SubjectInput(NamedTuple):
    """Recorded states of a subject at the beginning of a replay, and its changes by each rule.

    ``before``, by rule, and ``overall`` are the latest changes before; ``changes`` follow them.
    """

    before: Mapping[str, StatusChangeRow]
    overall: StatusChangeRow | None
    changes: Sequence[StatusChangeRow]


@dataclass
class _SubjectState:
    """Current states of a subject during the replay, with the latest change by each rule.

    ``announcement`` is the identity of the override or downtime that decided the state.
    """

    rules: dict[str, StatusChangeRow]
    state: SiteState
    cause: str
    announcement: str | None
    downtimes: Sequence[DowntimeRow]
    overrides: Sequence[OverrideRow]

    @classmethod
    def resume(
        cls,
        recorded: SubjectInput,
        downtimes: Sequence[DowntimeRow],
        overrides: Sequence[OverrideRow],
    ) -> _SubjectState:
        """Continue from the recorded states at the beginning of the replay."""
        rules, overall = dict(recorded.before), recorded.overall
        if overall is None:
            return cls(rules, SiteState.UNKNOWN, TOO_FEW, None, downtimes, overrides)
        announcement = _find_announcement(overall.evidence)
        state = SiteState(overall.state)
        return cls(rules, state, overall.cause, announcement, downtimes, overrides)

    @property
    def by_rules(self) -> SiteState:
        """Worst state by any rule."""
        states = (SiteState(change.state) for change in self.rules.values())
        return min(states, key=WORST_FIRST.index, default=SiteState.UNKNOWN)

    @property
    def critical_since_us(self) -> int | None:
        """Time since which a rule finds the subject critical; None if none does."""
        critical = (row for row in self.rules.values() if row.state == SiteState.CRITICAL)
        return min((row.since_us for row in critical), default=None)

    def explain_by_rules(self) -> tuple[str, str, StateEvidence]:
        """Return cause, reason and evidence of the state by the rules."""
        rules, by_rules = sorted(self.rules.items()), self.by_rules
        states = {name: change.state for name, change in rules}
        for cause, change in rules:
            if change.state == by_rules:
                return cause, change.reason, replace(change.evidence, rules=states, memory=None)
        return TOO_FEW, "too few results", StateEvidence(rules=states)

    def find_downtime(self, time_us: int) -> DowntimeRow | None:
        """Return the downtime at a time; of several the one that ends last."""
        current = [row for row in self.downtimes if row.starts_us <= time_us < row.ends_us]
        return max(current, key=lambda downtime: (downtime.ends_us, downtime.id), default=None)

    def find_override(self, time_us: int) -> OverrideRow | None:
        """Return the override at a time; of several the latest."""
        current = [row for row in self.overrides if row.made_us <= time_us < override_end(row)]
        return max(current, key=lambda override: (override.made_us, override.id), default=None)


def override_end(override: OverrideRow) -> int:
    """Return the end of an override, which somebody may have ended early."""
    return override.until_us if override.ended_us is None else override.ended_us


def list_subjects(row: DowntimeRow | OverrideRow) -> list[Subject]:
    """List the subjects of a downtime or override: jobs and storage of a site, or one of them."""
    kinds = (row.subject_kind,) if row.subject_kind else SUBJECT_KINDS
    return [Subject(kind, row.site) for kind in kinds]


@dataclass
class CentralEvent:
    """The current or latest central event among the sites of one kind.

    Attributes:
        limits: when an event begins and ends.
        active: whether it goes on.
        members: sites that it affects.
        judged: number of sites with a state, apart from those that were critical before.
        affected: number of members when it ended.
        grace_end_us: time after the end at which members that have not recovered become critical.
    """

    limits: CentralTable
    active: bool = False
    members: set[str] = field(default_factory=set)
    judged: int = 0
    affected: int = 0
    grace_end_us: int | None = None

    @classmethod
    def resume(
        cls, limits: CentralTable, last: StatusChangeRow | None, members: Iterable[str]
    ) -> CentralEvent:
        """Continue after the last recorded change, with the sites that were affected then."""
        if last is None:
            return cls(limits)
        if last.state == SiteState.CRITICAL:
            sites = {*(last.evidence.sites or ()), *members}
            return cls(limits, True, sites, last.evidence.judged or 0)
        return cls(
            limits, members={*members}, grace_end_us=last.since_us + duration_us(limits.grace)
        )

    def update(self, time_us: int, critical_since_us: Mapping[str, int | None]) -> None:
        """Begin, extend or end the event.

        Args:
            time_us: the time.
            critical_since_us: for each judged site the time since which its rules find it
                critical; None if they do not.
        """
        earliest = time_us - duration_us(self.limits.within)
        recent = {
            site
            for site, since in critical_since_us.items()
            if since is not None and since > earliest
        }
        critical = {site for site, since in critical_since_us.items() if since is not None}
        if not self.active:
            self.members &= critical  # A site that has recovered is no longer excused.
            judged = len(critical_since_us) - len(critical - recent)
            if len(recent) >= max(self.limits.min_sites, self.limits.share * judged):
                self.active, self.members, self.judged = True, recent, judged
                self.grace_end_us = None
            return
        self.members |= recent
        affected = len(self.members & critical)
        self.judged = len(critical_since_us) - len(critical - self.members)
        if affected < self.limits.ends_below * len(self.members) or not affected:
            self.affected = len(self.members)
            self.active = False
            self.members &= critical
            self.grace_end_us = time_us + duration_us(self.limits.grace)

    def covers(self, site: str, time_us: int) -> bool:
        """Return whether the event excuses a site at a time."""
        if site not in self.members:
            return False
        return self.active or (self.grace_end_us is not None and time_us < self.grace_end_us)

    def describe(self) -> str:
        """Describe the event in one sentence."""
        if self.active:
            return (
                f"{len(self.members):,} of {self.judged:,} sites turned critical within "
                f"{self.limits.within}"
            )
        return f"{len(self.members):,} of {self.affected:,} sites are still affected"


def build_timeline(
    subjects: Mapping[Subject, SubjectInput],
    downtimes: Sequence[DowntimeRow],
    overrides: Sequence[OverrideRow],
    central: Mapping[str, StatusChangeRow],
    rules: StatusRules,
    window: ReplayWindow,
) -> list[StatusChangeRow]:
    """Build the changes of all subjects' states within a window, in order.

    Args:
        subjects: their states by each rule.
        downtimes: outages.
        overrides: states set by people.
        central: latest recorded change of the central event before the window, by kind of site.
        rules: the rules.
        window: the time; changes are decided at its end.
    """
    by_kind: defaultdict[str, dict[Subject, SubjectInput]] = defaultdict(dict)
    for subject, subject_input in subjects.items():
        by_kind[subject.kind][subject] = subject_input
    changes: list[StatusChangeRow] = []
    for kind, inputs in sorted(by_kind.items()):
        event = central.get(kind)
        changes += _KindTimeline(kind, inputs, downtimes, overrides, event, rules, window).replay()
    return sorted(changes, key=lambda change: (change.since_us, change.subject_kind, change.site))


class _KindTimeline:
    """Replay of all subjects of one kind."""

    def __init__(
        self,
        kind: str,
        subjects: Mapping[Subject, SubjectInput],
        downtimes: Sequence[DowntimeRow],
        overrides: Sequence[OverrideRow],
        central: StatusChangeRow | None,
        rules: StatusRules,
        window: ReplayWindow,
    ) -> None:
        self._kind = kind
        self._inputs = subjects
        self._rules = rules
        self._window = window
        self._states = {
            subject: _SubjectState.resume(
                subject_input,
                [row for row in downtimes if subject in list_subjects(row)],
                [row for row in overrides if subject in list_subjects(row)],
            )
            for subject, subject_input in subjects.items()
        }
        members = [
            subject.site for subject, state in self._states.items() if state.cause == CENTRAL_CAUSE
        ]
        self._event = CentralEvent.resume(rules.central, central, members)
        self._found: list[StatusChangeRow] = []

    def replay(self) -> list[StatusChangeRow]:
        """Return the changes of the states of all subjects, and of the central event."""
        rule_changes: defaultdict[int, list[tuple[Subject, StatusChangeRow]]] = defaultdict(list)
        for subject, subject_input in self._inputs.items():
            for change in subject_input.changes:
                rule_changes[change.since_us].append((subject, change))
        times = set(rule_changes) | set(self._list_edges()) | {self._window.from_us + 1}
        pending = sorted(times)
        while pending:
            time_us = pending.pop(0)
            dirty = set(self._states) if time_us not in rule_changes else set()
            for subject, change in rule_changes.get(time_us, ()):
                self._states[subject].rules[change.rule] = change
                dirty.add(subject)
            if self._follow_event(time_us):
                dirty = set(self._states)
                end = self._event.grace_end_us
                if end is not None and time_us < end <= self._window.to_us:
                    pending = sorted({*pending, end})
            for subject in sorted(dirty):
                self._decide(subject, time_us)
        return self._found

    def _list_edges(self) -> Iterator[int]:
        """List the times in the window at which a downtime, override or grace begins or ends."""
        grace = self._event.grace_end_us
        edges = [] if grace is None else [grace]
        for state in self._states.values():
            for downtime in state.downtimes:
                edges += (downtime.starts_us, downtime.ends_us)
            for override in state.overrides:
                edges += (override.made_us, override_end(override))
        return (time for time in edges if self._window.from_us < time <= self._window.to_us)

    def _follow_event(self, time_us: int) -> bool:
        """Update the central event; return whether it began or ended."""
        working = {
            subject.site: state
            for subject, state in self._states.items()
            if state.find_downtime(time_us) is None
        }
        judged = {
            site: state.critical_since_us
            for site, state in working.items()
            if state.by_rules is not SiteState.UNKNOWN
        }
        was_active = self._event.active
        self._event.update(time_us, judged)
        if self._event.active is was_active:
            return False
        states = (SiteState.OK, SiteState.CRITICAL)
        evidence = StateEvidence(sites=tuple(sorted(self._event.members)), judged=len(judged))
        subject, change = Subject(CENTRAL, self._kind), (states[was_active], states[not was_active])
        self._note(subject, change, time_us, CENTRAL_CAUSE, self._event.describe(), evidence)
        return True

    def _note(
        self,
        subject: Subject,
        states: tuple[SiteState, SiteState],
        time_us: int,
        cause: str,
        reason: str,
        evidence: StateEvidence,
    ) -> None:
        """Note a change from one state to another."""
        rule = self._rules.rules.get(cause)
        self._found.append(
            StatusChangeRow(
                id="",
                subject_kind=subject.kind,
                site=subject.site,
                state=states[1].value,
                previous=states[0].value,
                since_us=time_us,
                decided_us=self._window.to_us,
                cause=cause,
                rule_version=rule.version if rule else self._rules.version,
                reason=reason,
                evidence=evidence,
            )
        )

    def _decide(self, subject: Subject, time_us: int) -> None:
        """Derive a subject's state at a time, and note its change."""
        current = self._states[subject]
        state, cause, reason, evidence = self._judge(subject, current, time_us)
        special = (DOWNTIME, OVERRIDE, CENTRAL_CAUSE)
        same_cause = cause == current.cause or not {cause, current.cause} & {*special}
        announcement = _find_announcement(evidence)
        if state is current.state and same_cause and announcement == current.announcement:
            return
        self._note(subject, (current.state, state), time_us, cause, reason, evidence)
        current.state, current.cause, current.announcement = state, cause, announcement

    def _judge(
        self, subject: Subject, current: _SubjectState, time_us: int
    ) -> tuple[SiteState, str, str, StateEvidence]:
        """Return state, cause, reason and evidence at a time."""
        by_rules = current.by_rules
        cause, reason, evidence = current.explain_by_rules()
        if (override := current.find_override(time_us)) is not None:
            reason = f"set by {override.who}: {override.why} (by the rules {by_rules}: {reason})"
            evidence = replace(
                evidence,
                override=override.id,
                until_us=override.until_us,
                who=override.who,
                why=override.why,
            )
            return SiteState(override.state), OVERRIDE, reason, evidence
        if (downtime := current.find_downtime(time_us)) is not None:
            reason = downtime.description or "announced downtime"
            evidence = replace(
                evidence,
                downtime=downtime.id,
                source=downtime.source,
                url=downtime.url,
                until_us=downtime.ends_us,
                who=downtime.source,
            )
            return SiteState.DOWNTIME, DOWNTIME, reason, evidence
        if by_rules is SiteState.CRITICAL and self._event.covers(subject.site, time_us):
            reason = f"central: {self._event.describe()}; exclusion suspended ({reason})"
            evidence = replace(evidence, sites=tuple(sorted(self._event.members)))
            return SiteState.WARNING, CENTRAL_CAUSE, reason, evidence
        return by_rules, cause, reason, evidence


def _find_announcement(evidence: StateEvidence) -> str | None:
    """Return the identity of the override or downtime that decided; None if none did."""
    return evidence.override or evidence.downtime
