"""Uses of sites by their states: whether jobs, only probes, or nothing may be sent.

:class:`SiteUses` is the only place that turns a state into an action. Submission, patrol, bisection,
placement, checks, pages and monitoring ask it. States are judged by the part ``judgement`` of a
vertical; without one every site is usable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from treehammer.sql.core.subjects import (
    DOOR,
    KIND_WORDS,
    SUBJECT_KINDS,
    label_door,
    split_door_label,
)
from treehammer.text_formatting import format_minute
from treehammer.verticals import import_parts

if TYPE_CHECKING:
    from treehammer.sql.write.store import Store


class SiteState(StrEnum):
    """State of a site, a storage, or one of their days."""

    OK = "ok"
    #: Works with failures above a threshold, or its exclusion is suspended.
    WARNING = "warning"
    #: Does not work; work is better sent elsewhere.
    CRITICAL = "critical"
    #: Too few results to judge.
    UNKNOWN = "unknown"
    #: Announced not to work.
    DOWNTIME = "downtime"

    @property
    def letter(self) -> str:
        """Short text for a small cell."""
        return "–" if self is SiteState.UNKNOWN else self.value[0].upper()


#: States from the worst to the least informative.
WORST_FIRST = (
    SiteState.CRITICAL,
    SiteState.WARNING,
    SiteState.DOWNTIME,
    SiteState.OK,
    SiteState.UNKNOWN,
)


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
        kind: a value of :data:`.subjects.JUDGED_KINDS`.
        site: name of the site; label of the door.
        usability: permitted use.
        state: state from which this follows.
        cause: deciding rule, ``downtime``, ``override`` or ``central``.
        reason: a sentence for people.
        since_us: begin of the state.
        until_us: announced end; None if it is open.
        who: the person who set it, the document that announced it, or the deciding rule.
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


def refresh_uses(
    store: Store, rules_file: Path | None, now_us: int, *, always: bool = False
) -> SiteUses:
    """Evaluate the states of sites if it is time, and list the uses.

    Args:
        store: the database.
        rules_file: file of the rules for states; None for the shipped ones.
        now_us: the time, in microseconds since 1970 UTC.
        always: evaluate also for the first time.
    """
    for part in import_parts("judgement"):
        uses: SiteUses = part.refresh_uses(store, rules_file, now_us, always=always)
        return uses
    return SiteUses()
