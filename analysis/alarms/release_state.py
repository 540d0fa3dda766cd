"""State of a ROOT release: regressions that reruns confirmed, refuted or have yet to decide."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from urllib.parse import quote

from treehammer.analysis.comparison.conclusion import select_headline
from treehammer.analysis.comparison.verdict_text import format_effect
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, Verdict
from treehammer.analysis.status.subject_state import (
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    worst_level,
)
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.watch_rows import ReleaseCheck
from treehammer.sql.read.stored_comparisons import (
    ComparisonSummary,
    VerdictCount,
    summarize_comparisons,
    summarize_release_comparisons,
)
from treehammer.sql.watch.alarms import ReleaseCheckTable
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize

RULE = "release/3"
#: Comparisons that the state of a release depends on.
COUNTED = (
    "Counted: finished campaigns, reruns, and stored comparisons with an older release as A, "
    "without --where and --delta."
)


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
    """Assess a release by its checks and the newest stored comparison of each test and base."""
    checks = ReleaseCheckTable(store).list_checks(release=release)
    return judge_release(release, checks, _load_compared(store, release))


def assess_releases(store: Store) -> list[SubjectState]:
    """Assess all releases that were measured."""
    checks, compared = _load_checks(store)
    names = sorted(ReleaseCheckTable(store).list_measured_releases(), key=natural_sort_key)
    return [judge_release(name, checks[name], compared) for name in names]


def list_regressions(store: Store) -> list[tuple[ReleaseCheck, Mapping[str, float]]]:
    """List the regressions that are confirmed or open, with the largest effect of each metric."""
    checks, compared = _load_checks(store)
    releases = sorted({*checks, *(check.b for check in compared)}, key=natural_sort_key)
    regressions = [
        check
        for release in releases
        for check in _select_decisive(release, checks[release], compared)
        if _level(check) is not AlarmLevel.OK
    ]
    summaries = summarize_comparisons(store, [check.comparison_id for check in regressions])
    return [
        (check, _find_effects(summaries[check.comparison_id].counts))
        for check in regressions
        if check.comparison_id in summaries
    ]


def _load_checks(store: Store) -> tuple[defaultdict[str, list[ReleaseCheck]], list[ReleaseCheck]]:
    """Load the checks of each release, the newest first, and all stored comparisons."""
    by_release: defaultdict[str, list[ReleaseCheck]] = defaultdict(list)
    for check in ReleaseCheckTable(store).list_checks():
        by_release[check.b].append(check)
    return by_release, _load_compared(store)


def _load_compared(store: Store, release: str | None = None) -> list[ReleaseCheck]:
    """Load the stored comparisons that count, of one release on either side or of all."""
    summaries = summarize_release_comparisons(store, release, _is_counted)
    return [check_of_comparison(test, comparison) for test, comparison in summaries]


def _is_counted(row: VerdictRow) -> bool:
    """Return whether a comparison, by its first row, is one of all results with an older release.

    A comparison of selected results, or with another tolerance, could hide a regression.
    """
    evidence = row.evidence
    is_whole = not (evidence.where or evidence.where_a or evidence.where_b)
    has_usual_delta = evidence.delta in (None, DEFAULT_DELTA)
    return natural_sort_key(row.a) < natural_sort_key(row.b) and is_whole and has_usual_delta


def _find_effects(counts: Sequence[VerdictCount]) -> dict[str, float]:
    """Find the largest effect of each slower metric, of single sites if these alone are slower."""
    effects: dict[str, float] = {}
    for rows in (select_headline(counts), counts):
        for row in rows:
            if row.verdict == Verdict.SLOWER and row.largest is not None:
                effects[row.metric] = max(effects.get(row.metric, 0.0), row.largest, key=abs)
        if effects:
            break
    return effects


def check_of_comparison(test_name: str, comparison: ComparisonSummary) -> ReleaseCheck:
    """Describe a stored comparison of two releases as a check: suspected if something is slower.

    It is not rerun, unlike the suspicion of a finished campaign.
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
        checked_us=first.created_us,
        changed_us=first.created_us,
        comparison_id=first.comparison_id,
        compared=sum(row.count for row in rows if Verdict(row.verdict).is_statistical),
        slower=sum(row.count for row in slower),
        effect=max(effects, key=abs, default=None),
    )


def judge_release(
    release: str, checks: Sequence[ReleaseCheck], compared: Sequence[ReleaseCheck] = ()
) -> SubjectState:
    """Judge the checks and stored comparisons of a release.

    Critical: a rerun confirmed that a test is slower. Warning: that is suspected, and no rerun has
    decided. Unknown: no comparison with another release has a verdict.

    Args:
        release: name of the release.
        checks: its checks, the newest first.
        compared: stored comparisons of any releases (see :func:`check_of_comparison`).
    """
    newest = _select_decisive(release, checks, compared)
    level = worst_level(*map(_level, newest)) if newest else AlarmLevel.UNKNOWN
    counts = Counter(map(_level, newest))
    return SubjectState(
        AlarmKind.RELEASE,
        release,
        level,
        _summarize(newest, level) if newest else _explain_unknown(release, checks, compared),
        details=(*map(describe_check, newest), COUNTED),
        figures=(
            AlarmFigure("compared_tests", len(newest)),
            AlarmFigure("slower_tests", counts[AlarmLevel.CRITICAL], critical=0),
            AlarmFigure("suspected_tests", counts[AlarmLevel.WARNING], warning=0),
        ),
        since_us=max(
            (check.changed_us for check in newest if _level(check) is level), default=None
        ),
        evidence=link_check(newest[0]) if newest else "/compare",
        rule=RULE,
    )


def _select_decisive(
    release: str, checks: Iterable[ReleaseCheck], compared: Iterable[ReleaseCheck]
) -> list[ReleaseCheck]:
    """Select the check or stored comparison of each test and base that decides, the worst first.

    The newest check decides. A stored comparison does so where there is none, or where the check
    is older and clear: only a check can end a suspicion.
    """
    decisive: dict[tuple[str, str], ReleaseCheck] = {}
    for check in filter(_is_compared, checks):
        decisive.setdefault((check.test_name, check.a), check)
    for comparison in compared:
        if comparison.b != release or not _is_compared(comparison):
            continue
        check = decisive.setdefault((comparison.test_name, comparison.a), comparison)
        if check.state == CheckState.CLEAR and check.changed_us < comparison.changed_us:
            decisive[comparison.test_name, comparison.a] = comparison
    return sorted(
        decisive.values(), key=lambda check: (-_level(check).rank, check.test_name, check.a)
    )


def _explain_unknown(
    release: str, checks: Iterable[ReleaseCheck], compared: Sequence[ReleaseCheck]
) -> str:
    """Say why a release has no state: no verdict, only the base of others, or never compared."""
    release_checks = [*checks, *(check for check in compared if check.b == release)]
    if any(check.state != CheckState.NOT_COMPARABLE for check in release_checks):
        tests = len({check.test_name for check in release_checks})
        return f"compared in {pluralize(tests, 'test')}, without a verdict"
    newer = sorted({check.b for check in compared if check.a == release}, key=natural_sort_key)
    if newer:
        return f"only the base of comparisons, of {', '.join(newer)}"
    return "not compared with an older release"


def describe_check(check: ReleaseCheck) -> str:
    """Describe a check in one line, with the campaign or stored comparison that counts."""
    effect = f", up to {format_effect(check.effect)}" if check.effect is not None else ""
    slower = f"{check.slower} of {check.compared} verdicts slower{effect}"
    source = f"campaign {check.campaign_id}" if check.campaign_id else "stored comparison"
    if check.state in (CheckState.CONFIRMED, CheckState.REFUTED):
        source = f"rerun {check.rerun_id}"
    return f"{check.test_name}: {check.b} against {check.a} {check.state} by {source}: {slower}"


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


def _summarize(checks: Sequence[ReleaseCheck], level: AlarmLevel) -> str:
    worst = checks[0]
    if level is AlarmLevel.OK:
        return f"not slower in {pluralize(len(checks), 'compared test')}"
    effect = f" {format_effect(worst.effect)}" if worst.effect is not None else ""
    return f"{worst.test_name}{effect} against {worst.a}, {worst.state}"
