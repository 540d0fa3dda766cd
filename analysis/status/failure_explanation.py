"""Explanation of failures in one sentence: origin of a site's failures or slowness, begin and remedy.

Pages, ``status``, ``check``, messages and the digest show this sentence. States keep the one of their
evaluation in their evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from treehammer.analysis.statistics.distributions import measure_scatter
from treehammer.analysis.status.failure_attribution import (
    MIN_CENTRAL_SITES,
    MIN_FAILED_JOBS,
    Culprit,
    FailureAttribution,
    FailureQuestion,
    attribute_failures,
    blame_commit,
    blame_host,
    compare_causes,
)
from treehammer.analysis.status.failure_causes import (
    DATASET,
    IMPLAUSIBLE_VALUES,
    STORAGE_CLASSES,
    FailureCause,
    find_failure_cause,
)
from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core import subjects
from treehammer.sql.core.evidence import FailureExplanation
from treehammer.sql.core.watch_rows import DowntimeRow
from treehammer.sql.read.failure_counts import (
    FailedRun,
    OutcomeCell,
    Period,
    PeriodCounts,
    Tally,
    load_bad_days,
    load_commit_counts,
    load_host_counts,
)
from treehammer.sql.read.overview_queries import JOB_SITE, STORAGE_SITE
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import format_minute, format_significant, pluralize
from treehammer.verticals import import_parts

if TYPE_CHECKING:
    from treehammer.sql.read import peer_sums

#: Days searched for the begin of failures or slowness.
SEARCHED_DAYS = 14
#: Difference that is slow: in standard deviations of the other sites, and at least.
SLOW_SIGMAS, SLOW_LEAST = 4.0, 0.1
#: Sites with the same work, and measurements, that a comparison needs.
MIN_PEERS, MIN_TIMED = 3, 3
_WALL, _CPU = "wall_per_event_s", "cpu_per_event_s"
#: States that failures explain.
BAD_STATES = (SiteState.WARNING, SiteState.CRITICAL)
#: Origins that explain nothing.
UNDECIDED = (Culprit.UNKNOWN, Culprit.COMMON)


class _Verbs(NamedTuple):
    """Verbs for the counted measurements: past, present of one test, present of several."""

    past: str
    singular: str
    plural: str


_FAILED = _Verbs("failed", "fails", "fail")
#: Bad ones are failed or implausible.
_BAD = _Verbs("were bad", "gives bad measurements", "give bad measurements")


def explain_results(
    store: ResultsReader,
    site: str,
    time_us: int,
    test: str,
    counts: PeriodCounts | None = None,
) -> FailureExplanation | None:
    """Explain the results of a site on a day: by the bad state since then if there is one.

    Args:
        store: the database.
        site: the site of the jobs.
        time_us: end of the results in question.
        test: the test in question; '' for all.
        counts: counts that other explanations have read.
    """
    period = Period.of_day(time_us)
    for row in _list_judged(
        lambda part: part.list_current_states(store, at_us=period.to_us, site=site)
    ):
        explanation: FailureExplanation | None = row.evidence.explanation
        is_of_jobs = row.subject_kind == subjects.SITE
        is_news = row.state in BAD_STATES and period.covers(row.since_us)
        if explanation and is_of_jobs and is_news and test in ("", *explanation.tests):
            return explanation
    return explain_period(store, site, period, test=test, counts=counts)


def explain_period(
    store: ResultsReader,
    site: str,
    period: Period,
    *,
    by: str = JOB_SITE,
    test: str = "",
    counts: PeriodCounts | None = None,
) -> FailureExplanation | None:
    """Explain the failures of a site or storage, otherwise its slowness; None without any.

    Args:
        store: the database.
        site: name of the site or storage.
        period: its time.
        by: whether it is the site of jobs or of the storage.
        test: only this test; '' for all.
        counts: counts that other explanations have read.
    """
    counts = counts or PeriodCounts(store)
    runs = [run for run in counts.list_failed_runs(by, site, period) if test in ("", run.test)]
    explanation = _explain_failures(store, site, period, by, test, counts, runs) if runs else None
    if explanation is None and by == JOB_SITE:
        explanation = explain_slowness(store, site, period)
    return explanation


def _explain_failures(
    store: ResultsReader,
    site: str,
    period: Period,
    by: str,
    test: str,
    counts: PeriodCounts,
    runs: Sequence[FailedRun],
) -> FailureExplanation | None:
    if outage := _find_downtime(store, runs):
        return _explain_by_downtime(*outage, runs)
    jobs = len({(run.campaign_id, run.job_id) for run in runs})
    cells = counts.list_cells(by, site, period)
    is_storage = by == STORAGE_SITE and _is_read_elsewhere(site, cells)
    failures_per_job = sum(run.count for run in runs) / jobs
    question = compare_causes(FailureQuestion(site, is_storage, test, failures_per_job, cells))
    attribution = attribute_failures(question)
    if attribution is None:
        return None
    runs = [run for run in runs if run.test in attribution.tests]
    if len(attribution.tests) == 1:
        campaigns = {run.campaign_id for run in runs}
        commits = load_commit_counts(store, attribution.tests[0], campaigns, period)
        attribution = blame_commit(attribution, commits, question)
    sentence = _describe_attribution(attribution, question, jobs)
    since = _find_begin(store, site, by, period, attribution, runs)
    hosts = load_host_counts(store, by, site, period, attribution.tests)
    host = blame_host(attribution, hosts, question)
    sentence = "; ".join(filter(None, (sentence + since, host)))
    action = _suggest_action(attribution, runs)
    return FailureExplanation(attribution.culprit.value, sentence, action, attribution.tests)


def _is_read_elsewhere(storage: str, cells: Iterable[OutcomeCell]) -> bool:
    """Return whether other sites read a storage, which distinguishes it from its site."""
    return {cell.site for cell in cells if cell.storage_site == storage} != {storage}


def _list_judged(list_rows: Callable[[ModuleType], list[Any]]) -> list[Any]:
    """List states or downtimes, as the verticals know them that judge sites."""
    return [row for part in import_parts("judgement") for row in list_rows(part)]


def _find_downtime(
    store: ResultsReader, runs: Sequence[FailedRun]
) -> tuple[DowntimeRow, int] | None:
    """Find the announced outage in which most failures happened, with their number; None without any."""
    since_us = min(run.started_us for run in runs)
    outages: list[DowntimeRow] = _list_judged(lambda part: part.list_outages(store, since_us))
    counts: Counter[DowntimeRow] = Counter()
    for run in runs:
        for row in outages:
            if row.starts_us <= run.started_us < row.ends_us and _is_affected(run, row):
                counts[row] += run.count
                break
    if not counts:
        return None
    row, count = counts.most_common(1)[0]
    return (row, count) if 2 * count > sum(run.count for run in runs) else None


def _explain_by_downtime(
    downtime: DowntimeRow, count: int, runs: Sequence[FailedRun]
) -> FailureExplanation:
    """Explain failures by an announced outage, which comes before any other origin."""
    by_kind = {subjects.STORAGE_SITE: Culprit.STORAGE, subjects.SITE: Culprit.SITE}
    # An outage of all of a site fails jobs elsewhere by its storage.
    is_own = all(run.site == downtime.site for run in runs)
    culprit = by_kind.get(downtime.subject_kind, Culprit.SITE if is_own else Culprit.STORAGE)
    parts = {subjects.STORAGE_SITE: "the storage of ", subjects.SITE: "jobs at "}
    subject = f"{parts.get(downtime.subject_kind, '')}{downtime.site}"
    affected = Tally(count, sum(run.count for run in runs))
    is_failed = all(run.sign.failure != Outcome.IMPLAUSIBLE for run in runs)
    noun = "failures" if is_failed else "bad measurements"
    since, until = format_minute(downtime.starts_us), format_minute(downtime.ends_us)
    return FailureExplanation(
        culprit.value,
        f"{affected} {noun} in the announced downtime of {subject}: {culprit}, since {since} UTC",
        f"Cause: downtime until {until} UTC, {downtime.description}. Wait for its end.",
        tuple(sorted({run.test for run in runs})),
    )


def _is_affected(run: FailedRun, downtime: DowntimeRow) -> bool:
    """Return whether an outage explains a failure: of its storage, or of the jobs of its site."""
    label = run.sign.failure
    # A payload that waits for its storage exceeds its time.
    by_storage = label in (*STORAGE_CLASSES, "payload") and downtime.site == run.storage_site
    by_jobs = label not in STORAGE_CLASSES and downtime.site == run.site
    affected = {subjects.STORAGE_SITE: by_storage, subjects.SITE: by_jobs}
    return affected.get(downtime.subject_kind, by_storage or by_jobs)


def _describe_attribution(
    attribution: FailureAttribution, question: FailureQuestion, jobs: int
) -> str:
    """Write the sentence: counts and origin."""
    verbs = _choose_verbs(attribution, question)
    other_causes = _describe_other_causes(Counter(question.other_causes.values()))
    elsewhere = f"{attribution.outside} elsewhere" if attribution.outside.total else ""
    outside = ", ".join(filter(None, (elsewhere, other_causes))) or "no other site ran this"
    counts = f"{attribution.inside} {verbs.past} here, {outside}"
    several = len(attribution.tests) != 1
    test = f"{len(attribution.tests)} tests" if several else attribution.tests[0]
    at_sites = f"at {attribution.sites} sites"
    detail = f" {attribution.detail}" if attribution.detail else ""
    since_commit = f"since {_name_commit(attribution)} ({format_minute(attribution.commit_us)} UTC)"
    if attribution.culprit is Culprit.UNKNOWN:
        return _describe_unknown(
            attribution, question, jobs, f"{test} {verbs.singular} {at_sites}", counts
        )
    texts: Mapping[Culprit, str] = {
        Culprit.SITE: f"{counts}: the site{detail}",
        Culprit.STORAGE: (
            f"{counts}, and all sites read {attribution.name}: the storage"
            if attribution.detail
            else f"{attribution.inside} {verbs.past} at {attribution.sites} sites that read {attribution.name}, "
            f"{attribution.outside} at other storages: the storage"
        ),
        Culprit.TEST: (
            f"{test} {verbs.singular} {at_sites} {since_commit}, "
            f"{attribution.outside} {verbs.past} before: the test"
            if attribution.commit
            else f"{test} {verbs.singular} {at_sites}, "
            f"other tests in {attribution.outside} there: the test"
        ),
        Culprit.RELEASE: (
            f"ROOT {attribution.name} {verbs.singular} {at_sites}, "
            f"other releases in {attribution.outside}: the release"
        ),
        Culprit.CENTRAL: (
            f"{attribution.inside} {verbs.past} here, and {test} "
            f"{verbs.plural if several else verbs.singular} {at_sites}: central"
        ),
        Culprit.COMMON: f"{counts}: {attribution.culprit}",
    }
    return texts[attribution.culprit]


def _describe_unknown(
    attribution: FailureAttribution, question: FailureQuestion, jobs: int, tests: str, counts: str
) -> str:
    """Write the sentence on failures that nothing is attributed to, with their possible origin."""
    if attribution.commit:
        alone = "no further site" if question.other_causes else "no other site"
        return f"{counts}; {alone} ran {_name_commit(attribution)}: the site or the test"
    sites = attribution.sites
    if sites.bad >= MIN_CENTRAL_SITES and 2 * sites.bad >= sites.total:
        return f"{tests} and no other test ran: the test or central"
    counts = counts.replace(" here", f" here in {pluralize(jobs, 'job')}", 1)
    if jobs < MIN_FAILED_JOBS:
        return f"{counts}: too few failed jobs to tell"
    if not question.other_causes:
        return f"{counts}: {Culprit.UNKNOWN}"
    return f"{counts}: the site or the test" if question.may_be_of_tests else f"{counts}: the site"


def _name_commit(attribution: FailureAttribution) -> str:
    return f"commit {attribution.commit[:10]}"


def _choose_verbs(attribution: FailureAttribution, question: FailureQuestion) -> _Verbs:
    """Choose the verbs by whether some of the counted measurements are implausible."""
    has_implausible = any(
        sign.failure == Outcome.IMPLAUSIBLE
        for cell in question.cells
        if cell.test in attribution.tests or attribution.culprit is Culprit.TEST
        for sign in cell.failures
    )
    return _BAD if has_implausible else _FAILED


def _describe_other_causes(causes: Counter[str]) -> str:
    """Describe the sites that fail by other causes, the most frequent cause first; '' without any."""
    if not causes:
        return ""
    names = [name for name, _ in causes.most_common()]
    verbs = _BAD if IMPLAUSIBLE_VALUES.name in causes else _FAILED
    sites = pluralize(causes.total(), "other site")
    return f"{sites} {verbs.past} by other causes ({', '.join(names)})"


def _find_begin(
    store: ResultsReader,
    site: str,
    by: str,
    period: Period,
    attribution: FailureAttribution,
    runs: Sequence[FailedRun],
) -> str:
    """Find the first of the days with failures in a row, with the time if it is in the period.

    Failures since a commit begin with it.
    """
    if attribution.commit:
        return ""
    days = load_bad_days(store, by, site, period.extend(SEARCHED_DAYS), attribution.tests)
    started = min((run.started_us for run in runs), default=period.from_us)
    first_day = Period.of_day(started).days[0]
    threshold = attribution.inside.share / 2
    for day in sorted((day for day in days if day < first_day), reverse=True):
        if not days[day].bad or days[day].share < threshold:
            break
        first_day = day
    if first_day == Period.of_day(started).days[0]:
        return f", since {format_minute(started)} UTC"
    return f", since {number_to_day(first_day)}"


def _suggest_action(attribution: FailureAttribution, runs: Sequence[FailedRun]) -> str:
    """Suggest an action by the most frequent class of failures and its most frequent message."""
    if not runs:
        return ""
    causes: Counter[FailureCause] = Counter()
    # Without a message, the most frequent one of the class is as likely.
    usual = {run.sign[:2]: run.sign for run in reversed(runs) if run.sign.message}
    for run in runs:
        sign = run.sign if run.sign.message else usual.get(run.sign[:2], run.sign)
        causes[find_failure_cause(sign)] += run.count
    cause, count = causes.most_common(1)[0]
    share = f"{count:,} of {causes.total():,} by {cause.name}" if len(causes) > 1 else cause.name
    by_culprit: Mapping[Culprit, str] = {
        Culprit.TEST: cause.action
        if cause is DATASET
        else "Fix the test, or submit the commit before with URL@COMMIT.",
        Culprit.CENTRAL: f"Check what all sites share. {cause.action}",
    }
    return f"Cause: {share}. {by_culprit.get(attribution.culprit, cause.action)}"


def explain_slowness(store: ResultsReader, site: str, period: Period) -> FailureExplanation | None:
    """Explain slower reading than of the same work at other sites; None without any."""
    # numpy takes a tenth of a second to load, which no check of a state should pay for.
    from treehammer.analysis.descriptive import peer_comparison

    days = period.extend(SEARCHED_DAYS).days
    last_day = days[1]
    # Most sites are not slow, which the last day alone shows.
    compared = peer_comparison.compare_sites(_load_sums(store, site, _WALL, (last_day, last_day)))
    differences = peer_comparison.list_differences(compared)
    slow = differences.pop(site, 0.0)
    if len(differences) < MIN_PEERS:
        return None
    _, spread = measure_scatter(differences.values())
    is_slow = slow >= max(SLOW_LEAST, SLOW_SIGMAS * spread)
    if not is_slow or compared[site].compared_count < MIN_TIMED:
        return None
    sums = _load_sums(store, site, _WALL, days)
    daily = peer_comparison.compare_over_time(sums, site, lambda day: day)
    by_day = {row.time: row.difference for row in daily if row.difference is not None}
    since = _find_first_slow_day({**by_day, last_day: slow}, last_day)
    sentence = (
        f"an event takes {format_significant(1 + slow, 2)} times the wall time of the same work at "
        f"{pluralize(compared[site].peer_count, 'other site')}: {Culprit.SITE}{since}"
    )
    cpu = peer_comparison.compare_sites(_load_sums(store, site, _CPU, (last_day, last_day)))
    action = "Cause: waiting for data. Check the door's load and the network to it."
    if peer_comparison.list_differences(cpu).get(site, 0.0) >= slow / 2:
        action = "Cause: CPU time. Check load, CPU model and limits of the site's nodes."
    return FailureExplanation(Culprit.SITE.value, sentence, action)


def _load_sums(
    store: ResultsReader, site: str, metric: str, days: tuple[int, int]
) -> peer_sums.WorkSums:
    from treehammer.sql.read.peer_sums import load_peer_sums

    return load_peer_sums(store, site, metric, days, {}).dailies


def _find_first_slow_day(by_day: Mapping[int, float], last_day: int) -> str:
    """Find the first of the slow days in a row; it is open if all searched days are slow."""
    threshold = by_day[last_day] / 2
    first_day = last_day
    for day in sorted((day for day in by_day if day < last_day), reverse=True):
        if by_day[day] < threshold:
            return f", since {number_to_day(first_day)}"
        first_day = day
    return f", since {number_to_day(first_day)} or before" if len(by_day) > 1 else ""
