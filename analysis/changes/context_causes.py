"""Causes of a change: context of its series that changed on the same day, and of no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from treehammer.analysis.changes.change_terms import Attribution
from treehammer.analysis.changes.daily_series import DailySeries
from treehammer.analysis.changes.step_attribution import SeriesGroup

#: Measured days on both sides of a change whose context is compared.
CONTEXT_DAYS = 7
#: Days by which context may change before or after the step.
CONTEXT_TOLERANCE = 1
#: Largest share of the days on one side that have the usual value of the other.
MAX_SHARED = 0.2

#: Aspect of the context -> attribution of a change in it.
ASPECTS: Mapping[str, Attribution] = MappingProxyType(
    {
        "storage server": Attribution.STORAGE,
        "door address": Attribution.STORAGE,
        "address family": Attribution.STORAGE,
        "ROOT build": Attribution.RELEASE,
        "kernel": Attribution.SITE,
        "operating system": Attribution.SITE,
        "node type": Attribution.SITE,
    }
)


@dataclass(frozen=True)
class ContextCause:
    """An aspect of the context that changed with a step.

    Attributes:
        aspect: a key of :data:`ASPECTS`.
        before: its usual value before.
        after: its usual value after.
        share: share of the changed series in which it changed.
    """

    aspect: str
    before: str
    after: str
    share: float

    def __str__(self) -> str:
        return f"{self.aspect} {self.before} → {self.after}"


def find_causes(
    members: Sequence[DailySeries], outsiders: Sequence[DailySeries], day: int
) -> list[ContextCause]:
    """Find context that changed in most of the members, and more often than in the others."""
    member_switches, outsider_switches = (
        _count_switches(members, day),
        _count_switches(outsiders, day),
    )
    causes = []
    for (aspect, before, after), count in member_switches.most_common():
        share = count / len(members)
        outsider_share = outsider_switches[aspect, before, after] / max(len(outsiders), 1)
        if share > 0.5 and share > 2 * outsider_share:
            causes.append(ContextCause(aspect, before, after, share))
    return sorted(causes, key=lambda cause: (-cause.share, list(ASPECTS).index(cause.aspect)))


def choose_attribution(
    group: SeriesGroup, equivalent: Mapping[Attribution, str], causes: Sequence[ContextCause]
) -> SeriesGroup:
    """Let a cause decide between groups that hold the same series, such as a site and its storage."""
    for cause in causes:
        pointed = ASPECTS[cause.aspect]
        if pointed in equivalent:
            return replace(group, attribution=pointed, subject=equivalent[pointed])
    return group


def _count_switches(series: Sequence[DailySeries], day: int) -> Counter[tuple[str, str, str]]:
    return Counter(switch for member in series for switch in set(_find_switches(member, day)))


def _find_switches(series: DailySeries, day: int) -> Iterator[tuple[str, str, str]]:
    first = int(np.searchsorted(series.days, day - CONTEXT_TOLERANCE))
    last = int(np.searchsorted(series.days, day + CONTEXT_TOLERANCE, side="right"))
    sides = (
        series.contexts[max(first - CONTEXT_DAYS, 0) : first],
        series.contexts[last : last + CONTEXT_DAYS],
    )
    for aspect in ASPECTS:
        before, after = ([values[aspect] for values in side if aspect in values] for side in sides)
        if not before or not after:
            continue
        old, new = (Counter(values).most_common(1)[0][0] for values in (before, after))
        if (
            old != new
            and before.count(new) <= MAX_SHARED * len(before)
            and after.count(old) <= MAX_SHARED * len(after)
        ):
            yield aspect, old, new
