"""State of a ROOT release: regressions that reruns confirmed, refuted or have yet to decide."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import quote

from treehammer.analysis.alarms.alarm_levels import (
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    worst_level,
)
from treehammer.analysis.comparison.wording.verdict_text import format_effect
from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.sql.core.watch_rows import ReleaseCheck
from treehammer.sql.watch.release_checks import ReleaseCheckTable
from treehammer.sql.write.store import Store

RULE = "release/1"


class CheckState(StrEnum):
    """State of a check of one release against another."""

    CLEAR = "clear"
    SUSPECTED = "suspected"
    RERUNNING = "rerunning"
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    #: Slower again while an earlier check of the same test and releases is open or confirmed.
    KNOWN = "known"
    NOT_COMPARABLE = "not comparable"


#: Level of a release by the state of its newest check of a test.
_LEVELS = {
    CheckState.CONFIRMED: AlarmLevel.CRITICAL,
    CheckState.SUSPECTED: AlarmLevel.WARNING,
    CheckState.RERUNNING: AlarmLevel.WARNING,
    CheckState.UNDECIDED: AlarmLevel.WARNING,
    CheckState.CLEAR: AlarmLevel.OK,
    CheckState.REFUTED: AlarmLevel.OK,
}


def assess_release(store: Store, release: str) -> SubjectState:
    """Assess a release by the newest check of each test and base."""
    return judge_release(release, ReleaseCheckTable(store).list_checks(release=release))


def assess_releases(store: Store) -> list[SubjectState]:
    """Assess all releases that were measured."""
    table = ReleaseCheckTable(store)
    by_release: defaultdict[str, list[ReleaseCheck]] = defaultdict(list)
    for one in table.list_checks():
        by_release[one.b].append(one)
    names = sorted(table.list_measured_releases(), key=natural_sort_key)
    return [judge_release(name, by_release[name]) for name in names]


def judge_release(release: str, checks: Sequence[ReleaseCheck]) -> SubjectState:
    """Judge the checks of a release.

    Critical: a rerun confirmed that a test is slower. Warning: that is suspected, and the rerun has
    not decided. Unknown: nothing was compared.

    Args:
        release: name of the release.
        checks: its checks, the newest first.
    """
    newest = list(
        {(one.test_name, one.a): one for one in reversed(checks) if _is_compared(one)}.values()
    )
    newest.sort(key=lambda one: (-_level(one).rank, one.test_name, one.a))
    level = worst_level(*map(_level, newest)) if newest else AlarmLevel.UNKNOWN
    counts = Counter(CheckState(one.state) for one in newest)
    slower = counts[CheckState.CONFIRMED]
    return SubjectState(
        AlarmKind.RELEASE,
        release,
        level,
        _summarize(newest, level),
        details=tuple(map(describe_check, newest)),
        figures=(
            AlarmFigure("compared_tests", len(newest)),
            AlarmFigure("slower_tests", slower, warning=None, critical=0),
            AlarmFigure("suspected_tests", _count_open(counts), warning=0),
        ),
        since_us=max((one.changed_us for one in newest if _level(one) is level), default=None),
        evidence=link_check(newest[0]) if newest else "/compare",
        rule=RULE,
    )


def describe_check(check: ReleaseCheck) -> str:
    """Describe a check in one line."""
    effect = f", up to {format_effect(check.effect)}" if check.effect is not None else ""
    slower = f"{check.slower} of {check.compared} comparisons slower{effect}"
    return f"{check.test_name}: {check.b} against {check.a} {check.state}: {slower}"


def link_check(check: ReleaseCheck) -> str:
    """Return the path of the page with the comparison of a check."""
    if not check.comparison_id:
        return f"/campaigns/{quote(check.campaign_id, safe='')}"
    return f"/compare/{quote(check.comparison_id, safe='')}"


def _is_compared(check: ReleaseCheck) -> bool:
    """Return whether a check decides the state; a known regression keeps the earlier check's."""
    return check.state not in (CheckState.NOT_COMPARABLE, CheckState.KNOWN)


def _level(check: ReleaseCheck) -> AlarmLevel:
    return _LEVELS[CheckState(check.state)]


def _count_open(counts: Counter[CheckState]) -> int:
    return sum(
        counts[state]
        for state in (CheckState.SUSPECTED, CheckState.RERUNNING, CheckState.UNDECIDED)
    )


def _summarize(checks: Sequence[ReleaseCheck], level: AlarmLevel) -> str:
    if not checks:
        return "not compared with another release"
    worst = checks[0]
    if level is AlarmLevel.OK:
        return f"not slower in {len(checks)} compared test{'s' * (len(checks) != 1)}"
    effect = f" {format_effect(worst.effect)}" if worst.effect is not None else ""
    return f"{worst.test_name}{effect} against {worst.a}, {worst.state}"
