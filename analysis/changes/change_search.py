"""Search for changes among all series of one test and metric, the clearest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from treehammer.analysis.changes.change_terms import ChangeState, SeriesKind
from treehammer.analysis.changes.context_causes import ContextCause, choose_attribution, find_causes
from treehammer.analysis.changes.daily_series import DailySeries, pool_series
from treehammer.analysis.changes.step_attribution import (
    Explanation,
    MemberStep,
    SeriesGroup,
    explain_step,
    group_series,
)
from treehammer.analysis.changes.step_detection import (
    DAY_TOLERANCE,
    MIN_DAYS,
    Step,
    find_steps,
    is_seconded,
)
from treehammer.analysis.statistics.verdict import ALPHA

#: Changes smaller than this (ln) are not reported.
MIN_SIZE = 0.005
#: Measured days on each side of a change that confirm it; until then it is provisional.
CONFIRM_DAYS = 5
#: Looks at a step that count as independent while it is searched every evening: an evening adds one
#: day to those of the evening before, and its evidence doubles six times in a window of 90 days.
LOOKS = 20
#: Limit of changes of one test and metric, in case of wild series.
MAX_CHANGES = 50


@dataclass(frozen=True)
class Change:
    """A step that some series share.

    Attributes:
        group: its origin, with the series that changed.
        day: first day ordinal after the change.
        size: change in ln; positive is slower.
        interval: 95 % interval of the size, over the days of both sides.
        p: two-sided p-value of no change.
        days_before: days before it that were used.
        days_after: days from it on that were used.
        seconded: a second detector finds it as well.
        causes: context that changed with it.
        steps: sizes of the single series.
    """

    group: SeriesGroup
    day: int
    size: float
    interval: tuple[float, float]
    p: float
    days_before: int
    days_after: int
    seconded: bool
    causes: Sequence[ContextCause] = ()
    steps: Sequence[MemberStep] = field(default=(), repr=False)

    @property
    def state(self) -> ChangeState:
        """Whether enough days were measured on both sides."""
        enough = min(self.days_before, self.days_after) >= CONFIRM_DAYS
        return ChangeState.CONFIRMED if enough else ChangeState.PROVISIONAL


def find_changes(series: Sequence[DailySeries], kind: SeriesKind) -> list[Change]:
    """Find the changes in series of one test and metric, by day.

    Single series and every pool that may explain a change are searched. The clearest step is
    explained and taken out of its series, then the rest is searched again. The probability of any
    false change in all series together is 5 % (Bonferroni over pools and days), also where they are
    searched every evening (and over :data:`LOOKS`).
    """
    search = _ChangeSearch(series, kind)
    changes: list[Change] = []
    for _ in range(MAX_CHANGES):
        if (change := search.take_clearest()) is None:
            break
        if not any(_is_same_step(change, earlier) for earlier in changes):
            changes.append(change)
    return sorted(
        changes, key=lambda change: (change.day, change.group.attribution, change.group.subject)
    )


def _is_same_step(change: Change, other: Change) -> bool:
    """Return whether two findings are one step, whose sides have :data:`MIN_DAYS` days at least."""
    return change.group.members == other.group.members and abs(change.day - other.day) < MIN_DAYS


class _ChangeSearch:
    """Series with the changes found so far taken out, and the steps of each pool of them."""

    def __init__(self, series: Sequence[DailySeries], kind: SeriesKind) -> None:
        self._series = {member.identity: member for member in series}
        self._original = dict(self._series)
        self._groups = group_series(series, kind)
        pools = {group.members for group in self._groups}
        pools |= {frozenset({identity}) for identity in self._series}
        days = max((len(member.days) for member in series), default=1)
        self._level = ALPHA / max(len(pools) * days * LOOKS, 1)
        self._taken: list[Change] = []
        self._steps: dict[frozenset[str], list[Step]] = {}
        for pool in sorted(pools, key=sorted):
            self._steps[pool] = self._find_steps(pool)

    def take_clearest(self) -> Change | None:
        """Explain the clearest step, and take it out of its series; None if there is none."""
        while candidates := [(pool, step) for pool, steps in self._steps.items() for step in steps]:
            pool, step = max(
                candidates,
                key=lambda candidate: abs(candidate[1].estimate.mean) / candidate[1].estimate.se,
            )
            explanation = explain_step(list(self._series.values()), self._groups, step.day, pool)
            if explanation and (change := self._build_change(explanation, step)):
                self._take_out(change)
                return change
            self._steps[pool].remove(step)
        return None

    def _build_change(self, explanation: Explanation, step: Step) -> Change | None:
        """Measure the change over the members of the explanation, near the day of the step."""
        group = explanation.group
        candidates = [
            candidate
            for candidate in self._find_steps(group.members)
            if abs(candidate.day - step.day) <= DAY_TOLERANCE
        ]
        if not candidates:
            return None
        clearest = min(candidates, key=lambda candidate: candidate.estimate.p)
        members = [self._original[identity] for identity in sorted(group.members)]
        outsiders = [
            outsider for key, outsider in self._original.items() if key not in group.members
        ]
        causes = find_causes(members, outsiders, clearest.day)
        group = choose_attribution(group, explanation.equivalent, causes)
        days, values = pool_series([self._series[member.identity] for member in members])
        return Change(
            group,
            clearest.day,
            clearest.estimate.mean,
            clearest.estimate.interval(),
            clearest.estimate.p,
            clearest.days_before,
            clearest.days_after,
            is_seconded(days, values, clearest.day),
            causes,
            explanation.steps,
        )

    def _take_out(self, change: Change) -> None:
        sizes = {step.identity: step.size for step in change.steps}
        if any(_is_same_step(change, earlier) for earlier in self._taken):
            # The members' own steps, over a month, differ from the one between few days.
            sizes = {}
        self._taken.append(change)
        for identity in change.group.members:
            size = sizes.get(identity, change.size)
            self._series[identity] = self._series[identity].shift(change.day, size)
        for pool in self._steps:
            if pool & change.group.members:
                self._steps[pool] = self._find_steps(pool)

    def _find_steps(self, pool: frozenset[str]) -> list[Step]:
        """Find the significant steps of a pool that are large enough to report."""
        days, values = pool_series([self._series[identity] for identity in sorted(pool)])
        steps = find_steps(days, values, self._level)
        return [step for step in steps if abs(step.estimate.mean) >= MIN_SIZE]
