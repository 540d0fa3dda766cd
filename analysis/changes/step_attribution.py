"""Attribution of a step to the group of series that explains it best.

The idea is that of :mod:`treehammer.analysis.comparison.site_contrasts`: each site is judged against
all others, and undecided series contradict nothing. Here a group is a site, a storage, a door, a
release, or everything.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from treehammer.analysis.changes.change_terms import Attribution, SeriesKind
from treehammer.analysis.changes.daily_series import DailySeries
from treehammer.analysis.changes.step_detection import estimate_step

#: Spread of true sizes within a group (ln), and as a share of the size.
SIZE_SPREAD, RELATIVE_SPREAD = 0.002, 0.2
#: Sum of squares by which the best group must beat any other one.
MIN_LEAD = 6.0
#: Share of the members with enough data that must take part in the step.
MIN_TAKING_PART = 0.7
#: Days before and after a step that are compared.
WINDOW_DAYS = 30


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


@dataclass(frozen=True)
class MemberStep:
    """Step of one series at the day of a change, with its standard error, in ln."""

    identity: str
    size: float
    error: float


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
    steps: Sequence[MemberStep]


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


def explain_step(
    series: Sequence[DailySeries], groups: Sequence[SeriesGroup], day: int, affected: frozenset[str]
) -> Explanation | None:
    """Find the group whose members changed on a day while the others did not.

    Args:
        series: all series of one metric, test and kind.
        groups: of :func:`group_series`.
        day: day ordinal of the step.
        affected: series in which it was detected, in case no group explains it.

    Returns:
        None where no series has enough days around the step.
    """
    steps = list(filter(None, (_measure_step(member, day) for member in series)))
    by_members = _group_by_members(groups, frozenset(step.identity for step in steps))
    if not by_members:
        return None
    misfits = {members: _misfit(steps, members) for members in by_members}
    best = min(misfits, key=misfits.__getitem__)
    second_misfit = min(
        (misfit for members, misfit in misfits.items() if members != best), default=math.inf
    )
    unknown = SeriesGroup(Attribution.UNKNOWN, "", affected)
    if second_misfit - misfits[best] < MIN_LEAD or not _take_part(steps, best):
        return Explanation(unknown, {}, steps)
    best_groups = by_members[best]
    equivalent = {group.attribution: group.subject for group in reversed(best_groups)}
    return Explanation(_choose_group(best_groups, equivalent) or unknown, equivalent, steps)


def _group_by_members(
    groups: Iterable[SeriesGroup], measured: frozenset[str]
) -> Mapping[frozenset[str], Sequence[SeriesGroup]]:
    """Collect groups with the same measured members, which the data cannot distinguish."""
    groups_by_members: dict[frozenset[str], list[SeriesGroup]] = defaultdict(list)
    for group in groups:
        if members := group.members & measured:
            groups_by_members[members].append(group)
    return groups_by_members


def _choose_group(
    groups: Sequence[SeriesGroup], equivalent: Mapping[Attribution, str]
) -> SeriesGroup | None:
    """Choose among groups with the same members; None where they mean different things."""
    kinds = frozenset(equivalent)
    kind = next(iter(kinds)) if len(kinds) == 1 else _PREFERRED.get(kinds)
    # The first of a kind is the whole storage, the second its only door.
    chosen = next((group for group in groups if group.attribution is kind), None)
    if chosen is not None:
        return chosen
    members = frozenset[str]().union(*(group.members for group in groups))
    return SeriesGroup(Attribution.UNKNOWN, "", members)


def _measure_step(series: DailySeries, day: int) -> MemberStep | None:
    index = int(np.searchsorted(series.days, day))
    first = int(np.searchsorted(series.days, day - WINDOW_DAYS))
    last = int(np.searchsorted(series.days, day + WINDOW_DAYS))
    estimate = estimate_step(series.values, first, index, last)
    return MemberStep(series.identity, estimate.mean, estimate.se) if estimate else None


def _misfit(steps: Sequence[MemberStep], members: frozenset[str]) -> float:
    """Sum of squares that remains if just these members made the same step."""
    sizes = np.array([step.size for step in steps])
    inside = np.array([step.identity in members for step in steps])
    variances = np.array([step.error for step in steps]) ** 2 + SIZE_SPREAD**2
    size = _average(sizes[inside], variances[inside])
    widened = variances + inside * (RELATIVE_SPREAD * size) ** 2
    fitted = np.where(inside, _average(sizes[inside], widened[inside]), 0.0)
    # The larger variance of members costs its logarithm, as in a likelihood.
    return float(np.sum((sizes - fitted) ** 2 / widened + np.log(widened / variances)))


def _average(sizes: np.ndarray, variances: np.ndarray) -> float:
    return float(np.sum(sizes / variances) / np.sum(1 / variances))


def _take_part(steps: Sequence[MemberStep], members: frozenset[str]) -> bool:
    """Return whether most members with a decided step made it in the same direction."""
    inside = [step for step in steps if step.identity in members]
    variances = np.array([step.error**2 + SIZE_SPREAD**2 for step in inside])
    size = _average(np.array([step.size for step in inside]), variances)
    decided = [step for step in inside if 2 * step.error < abs(size)]
    sharing = [step for step in decided if step.size / size > 1 / 3]
    return len(sharing) >= MIN_TAKING_PART * len(decided)
