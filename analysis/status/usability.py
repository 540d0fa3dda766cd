"""Use of sites by their states: whether jobs, only probes, or nothing may be sent there.

This is the only place that turns a state into an action. Submission, patrol, bisection, placement,
checks, pages and monitoring ask it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from treehammer.analysis.status.state_timeline import DOWNTIME, OVERRIDE
from treehammer.analysis.status.status_rules import StatusRules
from treehammer.analysis.status.status_update import update_states
from treehammer.analysis.status.subject_state import SiteState
from treehammer.collectors.job_spec import LOCAL_BATCH
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch import state_history
from treehammer.sql.watch.state_history import (
    DOOR,
    JUDGED_KINDS,
    KIND_WORDS,
    SUBJECT_KINDS,
    label_door,
    split_door_label,
)
from treehammer.sql.write.store import Store
from treehammer.text_formatting import format_minute

#: Word of ``--include-excluded`` for every site.
EVERY_SITE = "all"


class Usability(StrEnum):
    """Permitted use of a site's jobs or a storage."""

    USABLE = "usable"
    #: Fails by the rules: single jobs test whether it has recovered.
    PROBE_ONLY = "probe only"
    #: Announced outage, or excluded by a person: nothing is sent until its end.
    EXCLUDED = "excluded"


@dataclass(frozen=True)
class SubjectUse:
    """Use of the jobs or the storage of a site, or of a door.

    Attributes:
        kind: a value of :data:`.state_history.JUDGED_KINDS`.
        site: name of the site; label of the door.
        usability: permitted use.
        state: state from which this follows.
        cause: deciding rule, ``downtime``, ``override`` or ``central``.
        reason: a sentence for people.
        since_us: begin of the state.
        until_us: announced end; None if it is open.
        who: the person who set it, the document that announced it, or the deciding rule.
        change_id: the change of state with the evidence.
    """

    kind: str
    site: str
    usability: Usability
    state: SiteState
    cause: str
    reason: str
    since_us: int
    until_us: int | None
    who: str
    change_id: str

    @property
    def is_usable(self) -> bool:
        """Whether jobs may be sent."""
        return self.usability is Usability.USABLE

    def describe(self) -> str:
        """Describe use, time, state, author and reason in one sentence without a full stop."""
        until = f" until {format_minute(self.until_us)}" if self.until_us is not None else ""
        return (
            f"{self.usability} since {format_minute(self.since_us)}{until} UTC, {self.state} by "
            f"{self.who}: {self.reason}"
        )


@dataclass(frozen=True)
class SiteUses:
    """Use of all sites and doors that have a state. Those without any are usable."""

    by_subject: Mapping[tuple[str, str], SubjectUse] = field(default_factory=dict)

    def find(self, kind: str, site: str) -> SubjectUse | None:
        """Return the use of a subject that has a state."""
        return self.by_subject.get((kind, site))

    def restrictions(
        self, site: str, kinds: Collection[str] = SUBJECT_KINDS
    ) -> tuple[SubjectUse, ...]:
        """Return what restricts the use of a site, as far as these kinds are needed."""
        uses = (self.find(kind, site) for kind in SUBJECT_KINDS if kind in kinds)
        return tuple(use for use in uses if use and not use.is_usable)

    def describe_restrictions(self, site: str, kinds: Collection[str] = SUBJECT_KINDS) -> str:
        """Say why a site is not usable; '' if it is."""
        kinds_by_text: defaultdict[str, list[str]] = defaultdict(list)
        for use in self.restrictions(site, kinds):
            kinds_by_text[use.describe()].append(KIND_WORDS[use.kind])
        return "; ".join(f"{' and '.join(words)} {text}" for text, words in kinds_by_text.items())

    def restricted_doors(self, storage: str) -> tuple[SubjectUse, ...]:
        """Return the uses of the doors of a storage that are not usable."""
        doors = (use for _, use in sorted(self.by_subject.items()) if use.kind == DOOR)
        doors_of_storage = (use for use in doors if split_door_label(use.site)[0] == storage)
        return tuple(use for use in doors_of_storage if not use.is_usable)

    def have_working_doors(self, storages: Iterable[str]) -> bool:
        """Return whether each of some storages has a door that works by its state."""
        doors = (use for use in self.by_subject.values() if use.kind == DOOR and use.is_usable)
        working = {
            split_door_label(use.site)[0] for use in doors if use.state is not SiteState.UNKNOWN
        }
        return working.issuperset(storages)

    def describe_door(self, storage: str, door: str) -> str:
        """Say why a door is not usable; '' if it is."""
        use = self.find(DOOR, label_door(storage, door))
        return use.describe() if use and not use.is_usable else ""

    def summarize(self, site: str) -> Usability:
        """Return the strictest use of the jobs and the storage of a site."""
        strictness = list(Usability)
        uses = [use.usability for use in self.restrictions(site)]
        return max(uses, key=strictness.index, default=Usability.USABLE)


def list_uses(store: ResultsReader, site: str | None = None) -> SiteUses:
    """List the uses of all sites and doors, or of one site, by the states as last evaluated."""
    return SiteUses(
        {
            (row.subject_kind, row.site): use_by_state(row)
            for row in state_history.list_current_states(store, site=site, doors=True)
            if row.subject_kind in JUDGED_KINDS
        }
    )


def use_by_state(row: StatusChangeRow) -> SubjectUse:
    """Derive the use of a subject from its state."""
    evidence = row.load_evidence()
    state = SiteState(row.state)
    until_us = evidence.get("until_us")
    return SubjectUse(
        kind=row.subject_kind,
        site=row.site,
        usability=_judge_use(state, row.cause, row.site),
        state=state,
        cause=row.cause,
        reason=str(evidence.get("why") or row.reason),
        since_us=row.since_us,
        until_us=None if until_us is None else int(until_us),
        who=str(evidence.get("who") or row.cause),
        change_id=row.id,
    )


def _judge_use(state: SiteState, cause: str, site: str) -> Usability:
    """Decide on the use of a site. The rules do not exclude the machine of a test's developer."""
    if state not in (SiteState.CRITICAL, SiteState.DOWNTIME):
        return Usability.USABLE
    if cause in (DOWNTIME, OVERRIDE):
        return Usability.EXCLUDED
    is_local = split_door_label(site)[0] == LOCAL_BATCH
    return Usability.USABLE if is_local else Usability.PROBE_ONLY


def find_probe_time(restrictions: Collection[SubjectUse], every_us: int, now_us: int) -> int | None:
    """Return the time of a site's latest due probe; None before the first, or if none is allowed."""
    if not restrictions or any(use.usability is Usability.EXCLUDED for use in restrictions):
        return None
    since_us = max(use.since_us for use in restrictions)
    periods = (now_us - since_us) // every_us
    return since_us + periods * every_us if periods > 0 else None


def refresh_uses(
    store: Store, rules: StatusRules, now_us: int, *, always: bool = False
) -> SiteUses:
    """Evaluate the states of sites if a step has passed since the last time, and list the uses.

    Nothing is evaluated, and nothing excluded, where nobody ever evaluated a state and no downtime
    was announced.

    Args:
        store: the database.
        rules: the rules.
        now_us: the time, in microseconds since 1970 UTC.
        always: evaluate also for the first time.
    """
    latest = state_history.find_latest_rule_set(store)
    if latest is None and not (always or state_history.list_downtimes(store, ends_after_us=now_us)):
        return SiteUses()
    if latest is None or is_evaluation_due(latest.evaluated_us, now_us, rules):
        update_states(store, now_us, rules)
    return list_uses(store)


def is_evaluation_due(evaluated_us: int, now_us: int, rules: StatusRules) -> bool:
    """Return whether results of another step count by now."""
    return evaluated_us // rules.step_us < now_us // rules.step_us
