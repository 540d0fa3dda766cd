"""Search for changes among all series of one test and metric: steps, attribution and causes.

A step is attributed to the group of series that explains it best: a site, a storage, a door, a
release, or everything. The idea is that of :mod:`treehammer.analysis.comparison.site_pooling`: each
site is judged against all others, and undecided series contradict nothing. Causes are facts of the
series' context that changed on the same day, and on no other.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType

import numpy as np

from treehammer.analysis.statistics.estimates import Estimate
from treehammer.analysis.statistics.verdict import ALPHA
from treehammer.watch.changes.daily_series import (
    CONFIRM_DAYS,
    DAY_TOLERANCE,
    MIN_DAYS,
    Attribution,
    ChangeState,
    DailySeries,
    Drift,
    SeriesKind,
    Step,
    find_drift,
    find_steps,
    is_seconded,
    is_steady,
    pool_series,
)

#: Spread of true sizes within a group (ln), and as a share of the size.
SIZE_SPREAD, RELATIVE_SPREAD = 0.002, 0.2
#: Sum of squares by which the best group must beat any other one.
MIN_LEAD = 6.0
#: Share of the members with enough data that must take part in the step.
MIN_TAKING_PART = 0.7


@dataclass(frozen=True)
class SeriesGroup:
    """Series that share a site, a storage, a release, or all.

    Attributes:
        attribution: origin of a change that affects all members and no others.
        subject: name of the site, release, storage or door; '' for all.
        members: identities of the series.
    """

    attribution: Attribution
    subject: str
    members: frozenset[str]


#: Identity of a series -> its step or drift in ln.
MemberSteps = Mapping[str, Estimate]


@dataclass(frozen=True)
class Explanation:
    """The group that explains a step, and alternatives with the same members.

    Attributes:
        group: the members; its attribution is unknown where no group explains the step.
        equivalent: attributions of groups that hold just the same series.
        steps: of all series at that day.
    """

    group: SeriesGroup
    equivalent: Mapping[Attribution, str]
    steps: MemberSteps


#: Attribution of indistinguishable groups: the likelier one.
_PREFERRED: Mapping[frozenset[Attribution], Attribution] = MappingProxyType(
    {
        frozenset({Attribution.SITE, Attribution.STORAGE}): Attribution.SITE,
        frozenset({Attribution.RELEASE, Attribution.CENTRAL}): Attribution.RELEASE,
    }
)


def group_series(series: Collection[DailySeries], kind: SeriesKind) -> list[SeriesGroup]:
    """List the groups that may explain a step."""
    members_by_subject: dict[tuple[Attribution, str], set[str]] = defaultdict(set)
    for member in series:
        place = member.place
        members_by_subject[Attribution.SITE, place.site].add(member.identity)
        members_by_subject[Attribution.STORAGE, place.storage_site].add(member.identity)
        members_by_subject[Attribution.STORAGE, f"{place.storage_site} / {place.door}"].add(
            member.identity
        )
        members_by_subject[Attribution.CENTRAL, ""].add(member.identity)
        if kind is SeriesKind.RATIO:
            members_by_subject[Attribution.RELEASE, place.release].add(member.identity)
    return [
        SeriesGroup(attribution, subject, frozenset(members))
        for (attribution, subject), members in sorted(members_by_subject.items())
    ]


def explain_change(
    series: Iterable[DailySeries],
    groups: Sequence[SeriesGroup],
    change: Step | Drift,
    affected: frozenset[str],
) -> Explanation | None:
    """Find the group whose members changed while the others did not.

    Args:
        series: all series of one metric, test and kind.
        groups: of :func:`group_series`.
        change: the step or drift.
        affected: series in which it was detected, in case no group explains it.

    Returns:
        None where no series has enough days.
    """
    steps = {member.identity: estimate for member in series if (estimate := change.measure(member))}
    by_members = _group_by_members(groups, steps)
    if not by_members:
        return None
    misfits = {members: _misfit(steps, members) for members in by_members}
    best = min(misfits, key=misfits.__getitem__)
    misfit, second_misfit, *_ = (*sorted(misfits.values()), math.inf)
    unknown = SeriesGroup(Attribution.UNKNOWN, "", _select_changed(steps, affected))
    if second_misfit - misfit < MIN_LEAD or not _take_part(steps, best):
        return Explanation(unknown, {}, steps)
    best_groups = by_members[best]
    equivalent = {group.attribution: group.subject for group in reversed(best_groups)}
    return Explanation(_choose_group(best_groups, equivalent) or unknown, equivalent, steps)


def _group_by_members(
    groups: Iterable[SeriesGroup], steps: MemberSteps
) -> Mapping[frozenset[str], Sequence[SeriesGroup]]:
    """Collect groups with the same measured members, which the data cannot distinguish."""
    by_members: dict[frozenset[str], list[SeriesGroup]] = defaultdict(list)
    for group in groups:
        if measured := group.members.intersection(steps):
            by_members[measured].append(group)
    return by_members


def _choose_group(
    groups: Sequence[SeriesGroup], equivalent: Mapping[Attribution, str]
) -> SeriesGroup | None:
    """Choose among groups with the same members; None where they mean different things."""
    kinds = frozenset(equivalent)
    kind = next(iter(kinds)) if len(kinds) == 1 else _PREFERRED.get(kinds)
    # The first of a kind is the whole storage, the second its only door.
    match = next((group for group in groups if group.attribution is kind), None)
    if match is not None:
        return match
    members = frozenset[str]().union(*(group.members for group in groups))
    return SeriesGroup(Attribution.UNKNOWN, "", members)


def _misfit(steps: MemberSteps, members: frozenset[str]) -> float:
    """Sum of squares that remains if just these members made the same step."""
    sizes = np.array([step.mean for step in steps.values()])
    inside = np.array([identity in members for identity in steps])
    variances = np.array([step.se for step in steps.values()]) ** 2 + SIZE_SPREAD**2
    size = _average(sizes[inside], variances[inside])
    widened = variances + inside * (RELATIVE_SPREAD * size) ** 2
    fitted = np.where(inside, _average(sizes[inside], widened[inside]), 0.0)
    # The larger variance of members costs its logarithm, as in a likelihood.
    return float(np.sum((sizes - fitted) ** 2 / widened + np.log(widened / variances)))


def _select_changed(steps: MemberSteps, affected: frozenset[str]) -> frozenset[str]:
    """Select the series of a pool that made its step themselves; all where none is sure."""
    decided = {
        identity: step.mean
        for identity, step in steps.items()
        if identity in affected and 2 * step.se < abs(step.mean)
    }
    largest = max(decided.values(), key=abs, default=0.0)
    changed = {identity for identity, size in decided.items() if size / largest > 1 / 3}
    return frozenset(changed) or affected


def _average(sizes: np.ndarray, variances: np.ndarray) -> float:
    return float(np.sum(sizes / variances) / np.sum(1 / variances))


def _take_part(steps: MemberSteps, members: frozenset[str]) -> bool:
    """Return whether most members with a decided step made it in the same direction."""
    inside = [step for identity, step in steps.items() if identity in members]
    variances = np.array([step.se**2 + SIZE_SPREAD**2 for step in inside])
    size = _average(np.array([step.mean for step in inside]), variances)
    decided = [step for step in inside if 2 * step.se < abs(size)]
    sharing = [step for step in decided if step.mean / size > 1 / 3]
    return len(sharing) >= MIN_TAKING_PART * len(decided)


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
    member_switches = _count_switches(members, day)
    outsider_switches = _count_switches(outsiders, day)
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
        if before and after and (switch := _find_switch(before, after)):
            yield aspect, *switch


def _find_switch(before: Sequence[str], after: Sequence[str]) -> tuple[str, str] | None:
    """Find the usual values of two sides if they differ, and hardly occur on the other side."""
    old, new = (Counter(values).most_common(1)[0][0] for values in (before, after))
    if old == new or before.count(new) > MAX_SHARED * len(before):
        return None
    return (old, new) if after.count(old) <= MAX_SHARED * len(after) else None


#: Changes smaller than this (ln) are not reported.
MIN_SIZE = 0.005
#: Drifts smaller than this (ln, over all days) are not reported.
MIN_DRIFT = 0.01
#: Looks at a step that count as independent while it is searched every evening: an evening adds one
#: day to those of the evening before, and its evidence doubles six times in a window of 90 days.
LOOKS = 20
#: Limit of changes of one search, in case of wild series.
MAX_CHANGES = 50
#: Limit of searches of one test and metric: three find all that alternating levels of a site hide, but
#: two hundred sites with four incidents each would take 35.
MAX_SEARCHES = 4


@dataclass(frozen=True)
class Change:
    """A step, or a drift, that some series share.

    Attributes:
        group: its origin, with the series that changed.
        day: first day ordinal after a step, or of a drift.
        until: last day ordinal of a drift; None for a step.
        size: change in ln; positive is slower.
        interval: 95 % interval of the size, over the days of both sides.
        p: two-sided p-value of no change.
        days_before: days before it that were used, of a drift those of its first half.
        days_after: days from it on that were used.
        seconded: a second detector finds a step as well; the thirds of a drift rise or fall.
        causes: context that changed with it.
        steps: sizes of the single series.
    """

    group: SeriesGroup
    day: int
    until: int | None
    size: float
    interval: tuple[float, float]
    p: float
    days_before: int
    days_after: int
    seconded: bool
    causes: Sequence[ContextCause] = ()
    steps: MemberSteps = field(default_factory=dict, repr=False)

    @property
    def state(self) -> ChangeState:
        """Whether enough days were measured on both sides."""
        enough = min(self.days_before, self.days_after) >= CONFIRM_DAYS
        return ChangeState.CONFIRMED if enough else ChangeState.PROVISIONAL


def find_changes(
    series: Sequence[DailySeries], kind: SeriesKind, searches: int = MAX_SEARCHES
) -> list[Change]:
    """Find the changes in series of one test and metric, by day.

    Single series and every pool that may explain a change are searched, for steps and for drifts
    over all days. The clearest one is explained and taken out of its series, then the rest is searched again. The probability of any
    false change in all series together is 5 % (Bonferroni over pools and days), also where they are
    searched every evening (and over :data:`LOOKS`).  Where there are short incidents, the days beside them
    are searched for what lasts, as long as ``searches`` are left.
    """
    search = _ChangeSearch(series, kind)
    changes = search.take_all()
    returns = [(change, search.find_returns(change, changes)) for change in changes]
    lasting = [change for change, ends in returns if not ends]
    if len(lasting) < len(changes) and searches > 1:
        lasting = find_changes(search.leave_out_incidents(returns), kind, searches - 1)
    lasting += [
        search.bound_incident(change, ends)
        for change, ends in returns
        if ends and not any(_is_same_change(change, other) for other in lasting)
    ]
    lasting.sort(key=lambda change: (change.day, change.group.attribution, change.group.subject))
    return lasting


#: Size of a return relative to that of the change before it.
_RETURN_SIZES = (0.2, 5.0)
#: Share of a change's series that another change must have to be the other end of one incident.
_MIN_SHARED = 0.5


def _is_same_change(change: Change, other: Change) -> bool:
    """Return whether two findings are one drift, or one step, whose sides have :data:`MIN_DAYS` days."""
    if change.group.members != other.group.members or bool(change.until) != bool(other.until):
        return False
    # A step back on another day is the other end of an incident that comes or goes gradually.
    days = MIN_DAYS if change.size * other.size > 0 else 1
    return bool(change.until) or abs(change.day - other.day) < days


class _ChangeSearch:
    """Series with the changes found so far taken out, and the steps of each pool of them."""

    def __init__(self, series: Sequence[DailySeries], kind: SeriesKind) -> None:
        self._series = {member.identity: member for member in series}
        self._original = dict(self._series)
        self._groups = group_series(series, kind)
        pools = {group.members for group in self._groups}
        pools |= {frozenset({identity}) for identity in self._series}
        # A drift counts as one more place of a step.
        places = 1 + max((len(member.days) for member in series), default=0)
        self._level = ALPHA / max(len(pools) * places * LOOKS, 1)
        self._taken: list[Change] = []
        self._found: dict[frozenset[str], list[Step | Drift]] = {}
        for pool in sorted(pools, key=sorted):
            self._found[pool] = self._search_pool(pool)

    def find_returns(self, change: Change, changes: Iterable[Change]) -> list[Change]:
        """Find the other ends of the short incidents that a step begins or ends in most of its series."""
        shared, returns, (smallest, largest) = set[str](), list[Change](), _RETURN_SIZES
        for other in changes:
            is_return = smallest <= -change.size / other.size <= largest
            is_step = not (change.until or other.until)
            if is_step and is_return and 0 < self._count_days(change, other) < CONFIRM_DAYS:
                shared |= change.group.members & other.group.members
                returns.append(other)
        return returns if len(shared) >= _MIN_SHARED * len(change.group.members) else []

    def bound_incident(self, change: Change, returns: Sequence[Change]) -> Change:
        """Let both ends of a short incident depend on the days between them alone.

        The first one found was measured over these days, but the second one in series from which the
        first is taken out: these have many days at its level, which do not confirm that it ended.
        """
        bounds = [self._count_days(change, other) for other in returns]
        before, after = (min(days, *bounds) for days in (change.days_before, change.days_after))
        return replace(change, days_before=before, days_after=after)

    def leave_out_incidents(
        self, returns: Iterable[tuple[Change, Iterable[Change]]]
    ) -> list[DailySeries]:
        """Leave the days of incidents out of their series: what lasts after them is another change."""
        series = dict(self._original)
        for change, ends in returns:
            for other in ends:
                for identity in change.group.members & other.group.members:
                    series[identity] = series[identity].leave_out(*sorted((change.day, other.day)))
        return [member for member in series.values() if len(member.days)]

    def _count_days(self, change: Change, other: Change) -> int:
        """Count the days between two changes on which a series of both was measured."""
        members = change.group.members & other.group.members
        first, end = sorted((change.day, other.day))
        measured = {int(day) for identity in members for day in self._original[identity].days}
        return sum(first <= day < end for day in measured)

    def take_all(self) -> list[Change]:
        """Take out the clearest change again and again; return those that are not the same."""
        changes: list[Change] = []
        for change in islice(iter(self._take_clearest, None), MAX_CHANGES):
            if not any(_is_same_change(change, earlier) for earlier in changes):
                changes.append(change)
        return changes

    def _take_clearest(self) -> Change | None:
        """Explain the clearest step or drift, and take it out of its series; None without any."""
        while candidates := [
            (pool, candidate) for pool, of_pool in self._found.items() for candidate in of_pool
        ]:
            pool, clearest = max(
                candidates,
                key=lambda candidate: abs(candidate[1].estimate.mean) / candidate[1].estimate.se,
            )
            explanation = explain_change(self._series.values(), self._groups, clearest, pool)
            if explanation and (change := self._build_change(explanation, clearest)):
                self._take_out(change)
                return change
            self._found[pool].remove(clearest)
        return None

    def _build_change(self, explanation: Explanation, change: Step | Drift) -> Change | None:
        """Measure the change over the members of the explanation, near the day of the finding."""
        group = explanation.group
        outsiders = [
            outsider for key, outsider in self._original.items() if key not in group.members
        ]
        clearest = self._find_again(group.members, change)
        if clearest is None:
            # The days of a noisy member may hide in the pool what the others show.
            group = replace(group, members=_select_changed(explanation.steps, group.members))
            clearest = self._find_again(group.members, change)
        if clearest is None:
            return None
        members = [self._original[identity] for identity in sorted(group.members)]
        causes = [] if clearest.until else find_causes(members, outsiders, clearest.day)
        group = choose_attribution(group, explanation.equivalent, causes)
        days, values = pool_series([self._series[member.identity] for member in members])
        return Change(
            group,
            clearest.day,
            clearest.until,
            clearest.estimate.mean,
            clearest.estimate.interval(),
            clearest.estimate.p,
            clearest.days_before,
            clearest.days_after,
            is_steady(values) if clearest.until else is_seconded(days, values, clearest.day),
            causes,
            explanation.steps,
        )

    def _find_again(self, members: frozenset[str], change: Step | Drift) -> Step | Drift | None:
        """Find the clearest change of members that is of the same kind, direction and days."""
        candidates = (
            candidate
            for candidate in self._search_pool(members)
            if type(candidate) is type(change)
            # The ends of a short incident are near each other.
            and candidate.estimate.mean * change.estimate.mean > 0
            and (candidate.until or abs(candidate.day - change.day) <= DAY_TOLERANCE)
        )
        return min(candidates, key=lambda candidate: candidate.estimate.p, default=None)

    def _take_out(self, change: Change) -> None:
        sizes = {identity: step.mean for identity, step in change.steps.items()}
        if any(_is_same_change(change, earlier) for earlier in self._taken):
            # The members' own steps, over a month, differ from the one between few days.
            sizes = {}
        self._taken.append(change)
        for identity in change.group.members:
            size = sizes.get(identity, change.size)
            self._series[identity] = self._series[identity].shift(change.day, size, change.until)
        for pool in self._found:
            if pool & change.group.members:
                self._found[pool] = self._search_pool(pool)

    def _search_pool(self, pool: frozenset[str]) -> list[Step | Drift]:
        """Find the significant steps and drifts of a pool that are large enough to report."""
        days, values = pool_series([self._series[identity] for identity in sorted(pool)])
        steps = find_steps(days, values, self._level)
        drifts = find_drift(days, values, self._level)
        return [
            *(step for step in steps if abs(step.estimate.mean) >= MIN_SIZE),
            *(drift for drift in drifts if abs(drift.estimate.mean) >= MIN_DRIFT),
        ]
