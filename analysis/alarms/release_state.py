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
from treehammer.analysis.comparison.verdict_headline import select_headline
from treehammer.analysis.comparison.wording.verdict_text import format_effect
from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.sql.core.watch_rows import ReleaseCheck
from treehammer.sql.read.overview_queries import ComparisonSummary
from treehammer.sql.read.release_comparisons import summarize_release_comparisons
from treehammer.sql.watch.release_checks import ReleaseCheckTable
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize

RULE = "release/2"


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
    """Assess a release by the newest check or stored comparison of each test and base."""
    checks = ReleaseCheckTable(store).list_checks(release=release)
    compared = [check_of_comparison(*one) for one in summarize_release_comparisons(store, release)]
    return judge_release(release, checks, compared)


def assess_releases(store: Store) -> list[SubjectState]:
    """Assess all releases that were measured."""
    table = ReleaseCheckTable(store)
    by_release: defaultdict[str, list[ReleaseCheck]] = defaultdict(list)
    for one in table.list_checks():
        by_release[one.b].append(one)
    compared = [check_of_comparison(*one) for one in summarize_release_comparisons(store)]
    names = sorted(table.list_measured_releases(), key=natural_sort_key)
    return [judge_release(name, by_release[name], compared) for name in names]


def check_of_comparison(test_name: str, comparison: ComparisonSummary) -> ReleaseCheck:
    """Describe a stored comparison of two releases as a check: suspected if something is slower.

    Nobody reruns it, unlike the suspicion of a finished campaign.
    """
    first = comparison.first_verdict
    rows = select_headline(comparison.counts)
    slower = [row for row in rows if row.verdict == Verdict.SLOWER]
    effects = [row.largest for row in slower if row.largest is not None]
    return ReleaseCheck(
        id=first.comparison_id,
        campaign_id="",
        test_name=test_name or "several tests",
        a=first.a,
        b=first.b,
        state=CheckState.SUSPECTED if slower else CheckState.CLEAR,
        comparison_id=first.comparison_id,
        compared=sum(row.count for row in rows if Verdict(row.verdict).is_statistical),
        slower=sum(row.count for row in slower),
        effect=max(effects, key=abs, default=None),
        text="",
        reruns=0,
        rerun_id="",
        checked_us=first.created_us,
        changed_us=first.created_us,
    )


def judge_release(
    release: str, checks: Sequence[ReleaseCheck], compared: Sequence[ReleaseCheck] = ()
) -> SubjectState:
    """Judge the checks and stored comparisons of a release.

    Critical: a rerun confirmed that a test is slower. Warning: that is suspected, and no rerun has
    decided. Unknown: no comparison with another release has a verdict.

    Args:
        release: name of the release.
        checks: its checks, the newest first; they count before stored comparisons.
        compared: stored comparisons of any releases (see :func:`check_of_comparison`).
    """
    own = [*(one for one in compared if one.b == release), *reversed(checks)]
    newest = list({(one.test_name, one.a): one for one in own if _is_compared(one)}.values())
    newest.sort(key=lambda one: (-_level(one).rank, one.test_name, one.a))
    level = worst_level(*map(_level, newest)) if newest else AlarmLevel.UNKNOWN
    counts = Counter(CheckState(one.state) for one in newest)
    slower = counts[CheckState.CONFIRMED]
    return SubjectState(
        AlarmKind.RELEASE,
        release,
        level,
        _summarize(newest, level) if newest else _explain_unknown(release, own, compared),
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


def _explain_unknown(
    release: str, own: Sequence[ReleaseCheck], compared: Sequence[ReleaseCheck]
) -> str:
    """Say why a release has no state: no verdict, only the base of others, or never compared."""
    if any(one.state != CheckState.NOT_COMPARABLE for one in own):
        tests = len({one.test_name for one in own})
        return f"compared in {pluralize(tests, 'test')}, without a verdict"
    others = sorted({one.b for one in compared if one.a == release}, key=natural_sort_key)
    if others:
        return f"only the base of comparisons, of {', '.join(others)}"
    return "not compared with another release"


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
    if check.state in (CheckState.NOT_COMPARABLE, CheckState.KNOWN):
        return False
    return check.state != CheckState.CLEAR or check.compared > 0


def _level(check: ReleaseCheck) -> AlarmLevel:
    return _LEVELS[CheckState(check.state)]


def _count_open(counts: Counter[CheckState]) -> int:
    return sum(
        counts[state]
        for state in (CheckState.SUSPECTED, CheckState.RERUNNING, CheckState.UNDECIDED)
    )


def _summarize(checks: Sequence[ReleaseCheck], level: AlarmLevel) -> str:
    worst = checks[0]
    if level is AlarmLevel.OK:
        return f"not slower in {len(checks)} compared test{'s' * (len(checks) != 1)}"
    effect = f" {format_effect(worst.effect)}" if worst.effect is not None else ""
    return f"{worst.test_name}{effect} against {worst.a}, {worst.state}"
