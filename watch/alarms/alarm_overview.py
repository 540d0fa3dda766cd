"""States of the service, of all sites and of all measured releases, and of one of them by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from urllib.parse import quote

from treehammer.analysis.comparison.conclusion import ScopedT, select_headline
from treehammer.analysis.comparison.verdict_text import format_effect
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import (
    DECIDED_VERDICTS,
    DEFAULT_DELTA,
    SERIES_SCOPES,
    Verdict,
)
from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.job_spec import JobState
from treehammer.errors import NothingToDoError, suggest_word
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.subjects import CENTRAL, KIND_WORDS, SITE
from treehammer.sql.core.watch_rows import ReleaseCheck, StatusChangeRow
from treehammer.sql.read import overview_queries
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.stored_comparisons import (
    ComparisonSummary,
    VerdictCount,
    summarize_comparisons,
    summarize_release_comparisons,
)
from treehammer.sql.write.store import Store
from treehammer.text_formatting import SECOND_US, format_minute, pluralize
from treehammer.watch.alarms.subject_state import (
    SERVICE_NAME,
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    judge_figure,
    worst_level,
)
from treehammer.watch.states.rule_judgements import RuleMemory, RunWindow, judge_runs
from treehammer.watch.states.site_status import charge_runs, find_site_states, use_by_state
from treehammer.watch.states.state_timeline import CENTRAL_CAUSE, Subject
from treehammer.watch.states.status_rules import ShareRule, StatusRules, duration_us
from treehammer.watch.store.alarms import ReleaseCheckTable
from treehammer.watch.store.state_history import (
    find_latest_rule_set,
    list_current_states,
    list_outages,
    list_run_outcomes,
)

RELEASE_RULE = "release/3"
#: Campaign of a check for which none could start.
NO_CAMPAIGN = "none"
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
    #: Nothing else is slower, or no answer on what was slower, while an earlier check is open or confirmed.
    KNOWN = "known"
    #: Nothing could be read with the release, and everything with the older one.
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"


#: Level of a release by the state of its newest check of a test.
_LEVELS = {
    CheckState.FAILED: AlarmLevel.CRITICAL,
    CheckState.CONFIRMED: AlarmLevel.CRITICAL,
    CheckState.SUSPECTED: AlarmLevel.WARNING,
    CheckState.RERUNNING: AlarmLevel.WARNING,
    CheckState.UNDECIDED: AlarmLevel.WARNING,
    CheckState.CLEAR: AlarmLevel.OK,
    CheckState.REFUTED: AlarmLevel.OK,
}
#: States of a regression that lasts until a clear check answers it.
LASTING_STATES = (CheckState.SUSPECTED, CheckState.RERUNNING, CheckState.CONFIRMED)
#: Identity of test, server and base of a release's checks.
identify_pair = attrgetter("test_name", "a", "server")


def assess_release(store: Store, release: str) -> SubjectState:
    """Assess a release by its checks and the newest stored comparison of each test and base."""
    checks = ReleaseCheckTable(store).list_checks(release=release)
    return judge_release(release, checks, _load_compared(store, release))


def assess_releases(store: Store) -> list[SubjectState]:
    """Assess all releases that were measured."""
    checks, compared = _load_checks(store), _load_compared(store)
    names = sorted(ReleaseCheckTable(store).list_measured_releases(), key=natural_sort_key)
    return [judge_release(name, checks[name], compared) for name in names]


def list_announced(store: Store) -> list[ReleaseCheck]:
    """List the confirmed regressions and failures of releases that no later check ended, newest first."""
    by_release = _load_checks(store)
    return [
        check
        for release in sorted(by_release, key=natural_sort_key, reverse=True)
        for check in _select_decisive(release, by_release[release], ())
        if check.state in (CheckState.CONFIRMED, CheckState.FAILED) and not check.server
    ]


def list_regressions(store: Store) -> list[tuple[ReleaseCheck, Mapping[str, float]]]:
    """List the regressions that are confirmed or open, with the largest effect of each metric."""
    checks, compared = _load_checks(store), _load_compared(store)
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


def _load_checks(store: Store) -> defaultdict[str, list[ReleaseCheck]]:
    """Load the checks of each release, the newest first."""
    by_release: defaultdict[str, list[ReleaseCheck]] = defaultdict(list)
    for check in ReleaseCheckTable(store).list_checks():
        by_release[check.b].append(check)
    return by_release


def _load_compared(store: Store, release: str | None = None) -> list[ReleaseCheck]:
    """Load the stored comparisons that count, decided ones first, of one release or of all."""
    summaries = summarize_release_comparisons(store, release, _is_counted, DECIDED_VERDICTS)
    return [check_of_comparison(test, comparison) for test, comparison in summaries]


def _is_counted(row: VerdictRow) -> bool:
    """Return whether a comparison, by its first row, is one of all results with an older release.

    A comparison of selected results, or with another tolerance, could hide a regression.
    """
    evidence = row.evidence
    is_whole = not (evidence.where or evidence.where_a or evidence.where_b)
    has_usual_delta = evidence.delta in (None, DEFAULT_DELTA)
    return natural_sort_key(row.a) < natural_sort_key(row.b) and is_whole and has_usual_delta


def select_decisive_rows(rows: Sequence[ScopedT]) -> list[ScopedT]:
    """Select the headline of a comparison, or the verdicts of single sites if these alone are slower."""
    headline = select_headline(rows)
    if any(row.verdict == Verdict.SLOWER for row in headline):
        return headline
    series = [row for row in rows if row.scope in SERIES_SCOPES]
    return series if any(row.verdict == Verdict.SLOWER for row in series) else headline


def select_slower_rows(rows: Sequence[ScopedT]) -> list[ScopedT]:
    """Select the decisive rows that are slower."""
    return [row for row in select_decisive_rows(rows) if row.verdict == Verdict.SLOWER]


def _find_effects(counts: Sequence[VerdictCount]) -> dict[str, float]:
    """Find the largest effect of each slower metric."""
    effects: dict[str, float] = {}
    for row in select_slower_rows(counts):
        if row.largest is not None:
            effects[row.metric] = max(effects.get(row.metric, 0.0), row.largest, key=abs)
    return effects


def check_of_comparison(test_name: str, comparison: ComparisonSummary) -> ReleaseCheck:
    """Describe a stored comparison of two releases as a check: suspected if something is slower.

    It is not rerun, unlike the suspicion of a finished campaign.
    """
    first = comparison.first_verdict
    rows = select_decisive_rows(comparison.counts)
    slower = select_slower_rows(comparison.counts)
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
        compared=sum(row.count for row in rows if Verdict(row.verdict).is_decided),
        slower=sum(row.count for row in slower),
        effect=max(effects, key=abs, default=None),
    )


def judge_release(
    release: str, checks: Sequence[ReleaseCheck], compared: Sequence[ReleaseCheck]
) -> SubjectState:
    """Judge the checks and stored comparisons of a release.

    Critical: a rerun confirmed that a test is slower, or it fails. Warning: that is suspected, and no rerun has
    decided. Unknown: no comparison with another release decided anything.

    Args:
        release: name of the release.
        checks: its checks, the newest first.
        compared: stored comparisons of any releases (see :func:`check_of_comparison`).
    """
    newest = _select_decisive(release, checks, compared)
    level = worst_level(*map(_level, newest)) if newest else AlarmLevel.UNKNOWN
    # The worst check of each test and base is last.
    counts = Counter({identify_pair(check): _level(check) for check in reversed(newest)}.values())
    return SubjectState(
        AlarmKind.RELEASE,
        release,
        level,
        _summarize(newest, level) if newest else _explain_unknown(release, checks, compared),
        details=(*map(describe_check, newest), COUNTED),
        figures=(
            AlarmFigure("compared_tests", counts.total()),
            AlarmFigure("slower_tests", counts[AlarmLevel.CRITICAL], critical=0),
            AlarmFigure("suspected_tests", counts[AlarmLevel.WARNING], warning=0),
        ),
        since_us=max(
            (check.changed_us for check in newest if _level(check) is level), default=None
        ),
        evidence=link_check(newest[0]) if newest else "/compare",
        rule=RELEASE_RULE,
    )


def _select_decisive(
    release: str, checks: Iterable[ReleaseCheck], compared: Iterable[ReleaseCheck]
) -> list[ReleaseCheck]:
    """Select the checks or the stored comparison of each test and base that decide, the worst first.

    A stored comparison decides where there is no check, or where the check is older and clear:
    only a check can end a suspicion.
    """
    by_test: defaultdict[tuple[str, ...], list[ReleaseCheck]] = defaultdict(list)
    for check in checks:
        by_test[identify_pair(check)].append(check)
    decisive = {key: list_decisive(same_checks) for key, same_checks in by_test.items()}
    for comparison in compared:
        if comparison.b != release or not comparison.compared:
            continue
        pair = identify_pair(comparison)
        check, *_ = decisive[pair] = decisive.get(pair) or [comparison]
        if check.state == CheckState.CLEAR and check.changed_us < comparison.changed_us:
            decisive[pair] = [comparison]
    return sorted(
        chain.from_iterable(decisive.values()),
        key=lambda check: (-_level(check).rank, check.test_name, check.a),
    )


def list_decisive(checks: Iterable[ReleaseCheck]) -> list[ReleaseCheck]:
    """List the checks that decide among those of one test and pair, given the newest first.

    These are the newest one, and the regressions and failures of other work before it that no clear
    or refuted check ended. A known regression keeps the earlier check's state. A clear check that
    decided nothing ends failures alone: the release runs again.
    """
    decisive: list[ReleaseCheck] = []
    is_running = False
    for check in checks:
        is_failure = check.state == CheckState.FAILED and check.campaign_id != NO_CAMPAIGN
        is_ended = any(not is_failure or newer.state != CheckState.FAILED for newer in decisive)
        is_ended |= is_running and check.state == CheckState.FAILED
        if check.state in (CheckState.CLEAR, CheckState.REFUTED):
            if check.compared:
                return decisive or [check]
            is_running = True
        elif check.state in LASTING_STATES or (check.state in _LEVELS and not is_ended):
            decisive.append(check)
    return decisive


def _explain_unknown(
    release: str, checks: Iterable[ReleaseCheck], compared: Sequence[ReleaseCheck]
) -> str:
    """Say why a release has no state: no verdict, only the base of others, or never compared."""
    release_checks = [*checks, *(check for check in compared if check.b == release)]
    if any(check.state != CheckState.NOT_COMPARABLE for check in release_checks):
        tests = len({check.test_name for check in release_checks})
        return f"compared in {pluralize(tests, 'test')}, nothing decided"
    newer = sorted({check.b for check in compared if check.a == release}, key=natural_sort_key)
    if newer:
        return f"only the base of comparisons, of {', '.join(newer)}"
    return "not compared with an older release"


def describe_check(check: ReleaseCheck) -> str:
    """Describe a check in one line, with the campaign or stored comparison that counts."""
    effect = f", up to {format_effect(check.effect)}" if check.effect is not None else ""
    outcome = f"{check.slower} of {check.compared} verdicts slower{effect}"
    if check.state == CheckState.FAILED:
        outcome = "it read nothing of some work"
    source = f"campaign {check.campaign_id}" if check.campaign_id else "stored comparison"
    if check.state in (CheckState.CONFIRMED, CheckState.REFUTED):
        source = f"rerun {check.rerun_id}"
    at_server = f" at {check.server}" if check.server else ""
    releases = f"{check.b}{at_server} against {check.a}"
    if check.state == CheckState.FAILED and check.campaign_id == NO_CAMPAIGN:
        return f"{check.test_name}: {check.b} cannot be set up: {check.text}"
    return f"{check.test_name}: {releases} {check.state} by {source}: {outcome}"


def describe_step(check: ReleaseCheck) -> str:
    """Say which test is slower, or fails, since which release or version of a server."""
    subject = f"{check.b} at {check.server}" if check.server else f"ROOT {check.b}"
    if check.state == CheckState.FAILED:
        contrast = f", and not with {check.a}" if check.campaign_id != NO_CAMPAIGN else ""
        return f"{check.test_name} fails with {subject}{contrast}"
    return f"{check.test_name} is slower with {subject} than with {check.a}"


def link_check(check: ReleaseCheck) -> str:
    """Return the path of the page with the comparison of a check."""
    if check.campaign_id == NO_CAMPAIGN:
        return f"/releases/{quote(check.b, safe='')}"
    if not check.comparison_id:
        return f"/campaigns/{quote(check.campaign_id, safe='')}"
    return f"/compare/{quote(check.comparison_id, safe='')}"


def _level(check: ReleaseCheck) -> AlarmLevel:
    return _LEVELS[CheckState(check.state)]


def _summarize(checks: Sequence[ReleaseCheck], level: AlarmLevel) -> str:
    worst = checks[0]
    if level is AlarmLevel.OK:
        return f"not slower in {pluralize(len(checks), 'compared test')}"
    effect = f" {format_effect(worst.effect)}" if worst.effect is not None else ""
    return f"{worst.test_name}{effect} against {worst.a}, {worst.state}"


#: Shares of the unfinished jobs that are held, in percent.
HELD_WARNING, HELD_CRITICAL = 20.0, 80.0
#: Fewer held jobs are not a warning.
MIN_HELD = 5
#: Seconds since the states of sites were evaluated: a warning, and critical.
STALE_LIMITS_S = (3600.0, 86_400.0)
SERVICE_RULE = "service/1"


def assess_service(store: Store, now_us: int) -> SubjectState:
    """Assess the service by its database."""
    latest = find_latest_rule_set(store)
    jobs = overview_queries.count_open_jobs(store)
    evaluated_us = latest.evaluated_us if latest else None
    return judge_service(jobs, evaluated_us, now_us)


def judge_service(jobs: Mapping[str, int], evaluated_us: int | None, now_us: int) -> SubjectState:
    """Judge the service.

    Warning: a fifth of the unfinished jobs is held, or the states of sites were not evaluated for an
    hour. Critical: four fifths of the unfinished jobs are held, or no state was evaluated for a day.

    Args:
        jobs: unfinished jobs by state.
        evaluated_us: time of the latest evaluation of the states of sites; None before the first.
        now_us: the time.
    """
    count = jobs.get(JobState.HELD.value, 0)
    open_jobs = sum(jobs.values())
    stale_s = None if evaluated_us is None else max(0.0, (now_us - evaluated_us) / SECOND_US)
    share = 100 * count / open_jobs if open_jobs else 0.0
    held_figure = AlarmFigure("held_jobs", share, "%", HELD_WARNING, HELD_CRITICAL, maximum=100.0)
    stale_figure = AlarmFigure("states_age", stale_s, "s", *STALE_LIMITS_S)
    reasons = [
        (judge_figure(held_figure) if count >= MIN_HELD else AlarmLevel.OK, f"{count} held jobs"),
        (judge_figure(stale_figure), f"states not evaluated for {(stale_s or 0.0) / 3600:.0f} h"),
    ]
    problems = [text for level, text in reasons if level is not AlarmLevel.OK]
    summary = ", ".join(problems) or f"{open_jobs:,} jobs in progress, {count:,} held"
    return SubjectState(
        AlarmKind.SERVICE,
        SERVICE_NAME,
        worst_level(*(level for level, _ in reasons)),
        summary,
        details=(f"{open_jobs} unfinished jobs, {count} held",),
        figures=(AlarmFigure("open_jobs", open_jobs), held_figure, stale_figure),
        evidence="/alarms",
        rule=SERVICE_RULE,
    )


def assess_site(store: ResultsReader, site: str) -> SubjectState:
    """Assess a site by the worse state of its jobs and its storage, with the figures of its rules.

    The summary of a share of its jobs has the counts of the figures, details those of the change.
    """
    rows = list_current_states(store, site=site)
    return _build_state(site, rows, *_measure_figures(store, site))


def assess_sites(store: ResultsReader) -> list[SubjectState]:
    """Assess all sites and central events, without figures."""
    by_site: defaultdict[str, list[StatusChangeRow]] = defaultdict(list)
    central = []
    for row in list_current_states(store):
        if row.subject_kind == CENTRAL:
            state = SubjectState(
                AlarmKind.CENTRAL,
                row.site,
                AlarmLevel(row.state.upper()),
                row.reason,
                since_us=row.since_us,
                evidence=_link_change(row),
                rule=f"{row.cause}/{row.rule_version}",
            )
            central.append(state)
        else:
            by_site[row.site].append(row)
    names = sorted({*by_site, *overview_queries.list_sites(store)} - {""})
    return [*central, *(_build_state(name, by_site[name]) for name in names)]


def _build_state(
    site: str,
    rows: Sequence[StatusChangeRow],
    figures: Iterable[AlarmFigure] = (),
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> SubjectState:
    worst = find_site_states(rows).get(site)
    if worst is None:
        return SubjectState(
            AlarmKind.SITE,
            site,
            AlarmLevel.UNKNOWN,
            "too few results, or not evaluated yet",
            figures=tuple(figures),
            evidence=f"/sites/{quote(site, safe='')}",
        )
    explanation = worst.evidence.explanation
    reason = worst.reason if worst.subject_kind != SITE else reasons.get(worst.cause, worst.reason)
    details = [
        f"{KIND_WORDS[row.subject_kind]}: {row.state} since {format_minute(row.since_us)} UTC, "
        f"{use_by_state(row).usability}, by {row.cause}: {row.reason}"
        for row in rows
    ]
    # Jobs and storage may share an explanation.
    explanations = dict.fromkeys(str(row.evidence.explanation or "") for row in rows)
    return SubjectState(
        AlarmKind.SITE,
        site,
        AlarmLevel(worst.state.upper()),
        reason if len(rows) == 1 else f"{KIND_WORDS[worst.subject_kind]}: {reason}",
        details=(*details, *filter(None, explanations)),
        figures=tuple(figures),
        since_us=worst.since_us,
        evidence=_link_change(worst),
        rule=f"{worst.cause}/{worst.rule_version}",
        is_excused=worst.cause == CENTRAL_CAUSE or worst.state == SiteState.DOWNTIME,
        origin=explanation.sentence if explanation else "",
        action=explanation.action if explanation else "",
    )


def _link_change(row: StatusChangeRow) -> str:
    """Return the path of the page with the evidence of a change."""
    return f"/state-changes/{quote(row.id, safe='')}"


def _measure_figures(
    store: ResultsReader, site: str
) -> tuple[list[AlarmFigure], Mapping[str, str]]:
    """Measure the figures of the rules that judge shares of the site's jobs, and what they say now."""
    figures: list[AlarmFigure] = []
    reasons: dict[str, str] = {}
    latest = find_latest_rule_set(store)
    if latest is None:
        return figures, reasons
    rules = StatusRules.model_validate_json(latest.document)
    for name, rule in sorted(rules.rules.items()):
        if not isinstance(rule, ShareRule) or SITE not in rule.sites:
            continue
        from_us = latest.evaluated_us - duration_us(rule.window)
        outcomes = list_run_outcomes(store, from_us, latest.evaluated_us)
        runs = [run for run in outcomes if run.site == site]
        by_subject = charge_runs(runs, (), rules, list_outages(store, from_us))
        charged = by_subject.get(Subject(SITE, site), ())
        good, bad = sum(run.good for run in charged), sum(run.bad for run in charged)
        share, limit = 100 * bad / good if good else None, 100 * rule.max_failed_per_success
        figures += (
            AlarmFigure(f"{name}_good", good),
            AlarmFigure(f"{name}_bad", bad),
            AlarmFigure(f"{name}_bad_per_good", share, "%", warning=limit),
        )
        window = RunWindow(latest.evaluated_us, charged, charged)
        reasons[name] = judge_runs(rule, window, RuleMemory()).reason
    return figures, reasons


def assess_all(store: Store, now_us: int) -> list[SubjectState]:
    """Assess the service, central events, all sites and all measured releases, in this order."""
    return [assess_service(store, now_us), *assess_sites(store), *assess_releases(store)]


def assess_subject(store: Store, kind: AlarmKind, name: str, now_us: int) -> SubjectState:
    """Assess one subject, with its figures.

    Raises:
        NothingToDoError: nothing was measured at this site, or with this release.
    """
    if kind is AlarmKind.SERVICE:
        return assess_service(store, now_us)
    if kind is AlarmKind.SITE:
        state = assess_site(store, name)
        if state.since_us is None and name not in overview_queries.list_sites(store):
            raise overview_queries.build_unknown_site_error(store, name)
        return state
    require_measured_release(store, name)
    return assess_release(store, name)


def require_measured_release(store: Store, name: str) -> None:
    """Check that a ROOT release was measured.

    Raises:
        NothingToDoError: it never was; names the nearest release.
    """
    releases = ReleaseCheckTable(store).list_measured_releases()
    if name not in releases:
        raise NothingToDoError(
            f"ROOT {name[:100]!r} was never measured", hint=suggest_word(name, releases)
        )
