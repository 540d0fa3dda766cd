"""Checks of campaigns with several releases of ROOT, or a new version of a server: is something slower?

Each finished campaign with several releases is compared once, each release with the oldest one, and
the newest one with that before. A campaign that is the first to read from a new version of a server
is compared with the last one of its test that read from the version before, at the same door. If
something is slower, the same campaign is to run again, and only the rerun decides. Patrol starts it:
it takes the checks of :func:`requested_reruns`, submits their campaigns again and calls
:func:`record_rerun`.

========== ==================================================== ===========================
state      event                                                next state
========== ==================================================== ===========================
(new)      nothing is slower                                    clear
(new)      something is slower                                  suspected
(new)      work that the older one did fails always             failed: is announced; what is
                                                                slower is another check
(new)      what is slower, or fails, did so in earlier checks   known: neither repeated nor
           that are open or announced; or nothing is slower,    announced
           and what was slower is undecided
suspected  patrol started the rerun                             rerunning
rerunning  the same variant and metric, not known from earlier  confirmed: is announced
           checks, is slower again
rerunning  all of them are the same or faster                   refuted, or known if an earlier
                                                                check is not answered
rerunning  neither, and fewer than three reruns                 suspected
rerunning  neither, after three reruns                          undecided
========== ==================================================== ===========================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from treehammer.analysis.comparison.comparison import (
    Comparison,
    compare_together,
    compare_with_first,
)
from treehammer.analysis.comparison.verdict_text import (
    describe_place,
    format_effect,
    format_interval,
    title_metric,
)
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample, natural_sort_key
from treehammer.analysis.statistics.verdict import (
    DECIDED_VERDICTS,
    DEFAULT_DELTA,
    ONE_SIDED_VERDICTS,
    Verdict,
)
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.errors import NothingToDoError
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.watch_rows import ReleaseCheck
from treehammer.sql.read.campaign_queries import load_campaign
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_overview import (
    LASTING_STATES,
    NO_CAMPAIGN,
    CheckState,
    identify_pair,
    list_decisive,
    select_decisive_rows,
    select_slower_rows,
)
from treehammer.watch.store.alarms import ReleaseCheckTable, hash_identity

#: Reruns that may fail to decide.
MAX_RERUNS = 3
#: Campaigns older than this are not compared.
MAX_AGE_US = 7 * DAY_US
#: Earlier campaigns of a test in which the version of a server before the present one is sought.
MAX_EARLIER = 10
#: Columns with versions of servers -> suffix of the server's label, as patrol names its occasions.
_SERVER_AXES = {"server_version": "", "origin_version": " origin"}
#: Slower variants that are listed.
MAX_LISTED = 20


def watch_campaigns(store: Store, now_us: int) -> list[ReleaseCheck]:
    """Compare newly finished campaigns and judge finished reruns; return the changed checks."""
    table = ReleaseCheckTable(store)
    changed: list[ReleaseCheck] = []
    for campaign_id in table.list_unchecked_campaigns(now_us - MAX_AGE_US):
        checks = _check_campaign(store, table, campaign_id, now_us)
        checks += _check_servers(store, table, campaign_id, now_us)
        table.add_checks(checks)
        changed += checks
    for before in table.list_checks(states=(CheckState.RERUNNING,)):
        if table.is_finished(before.rerun_id):
            updated = _judge_rerun(store, before, now_us)
            if table.update_check(before, updated):
                changed.append(updated)
    return changed


def requested_reruns(store: Store) -> list[ReleaseCheck]:
    """List the checks that need a rerun, oldest suspicion first."""
    return ReleaseCheckTable(store).list_checks(states=(CheckState.SUSPECTED,))[::-1]


def record_rerun(store: Store, check: ReleaseCheck, rerun_id: str, now_us: int) -> bool:
    """Record the campaign that patrol started for a check.

    Returns:
        False if the check no longer needs it, such as when it was recorded before.
    """
    updated = replace(check, state=CheckState.RERUNNING, changed_us=now_us)
    updated = replace(updated, reruns=check.reruns + 1, rerun_id=rerun_id)
    return ReleaseCheckTable(store).update_check(check, updated)


def record_failed_release(
    store: Store, test_name: str, roots: Sequence[str], message: str, now_us: int
) -> None:
    """Record that no campaign can start with the last of some releases, against each before it.

    The check of a later campaign takes the place of this one.
    """
    *earlier, release = roots
    checks = []
    for a in earlier or [""]:
        check = _make_check(NO_CAMPAIGN, test_name, a, release, CheckState.FAILED, now_us)
        checks.append(replace(check, id=hash_identity(check.id, test_name), text=message))
    ReleaseCheckTable(store).add_checks(checks)


def judge_rerun(
    slower: Collection[tuple[object, ...]], rows: Sequence[VerdictRow], reruns: int
) -> CheckState:
    """Return the state of a check after a rerun.

    Args:
        slower: identities of what was slower before (see :func:`identify_work`).
        rows: verdicts of the rerun.
        reruns: number of reruns until now.
    """
    verdicts = [row.verdict for row in rows if identify_work(row) in slower]
    if Verdict.SLOWER in verdicts:
        return CheckState.CONFIRMED
    if verdicts and all(verdict in (Verdict.SAME, Verdict.FASTER) for verdict in verdicts):
        return CheckState.REFUTED
    return CheckState.SUSPECTED if reruns < MAX_RERUNS else CheckState.UNDECIDED


def _check_campaign(
    store: Store, table: ReleaseCheckTable, campaign_id: str, now_us: int
) -> list[ReleaseCheck]:
    """Compare each release of a campaign with its oldest one."""
    test_name = load_campaign(store, campaign_id).test_name
    releases = sorted(table.list_releases(campaign_id), key=natural_sort_key)
    selection = Selection((campaign_id,))
    comparisons = _compare_values(store, selection, "root", releases, now_us)
    if len(releases) > 2:
        comparisons += _compare_values(store, selection, "root", releases[-2:], now_us)
    if not comparisons:
        state = CheckState.NOT_COMPARABLE
        return [_make_check(campaign_id, test_name, "", "", state, now_us)]
    checks = []
    for comparison in comparisons:
        sides = str(comparison.query.a), str(comparison.query.b)
        check = _make_check(campaign_id, test_name, *sides, CheckState.CLEAR, now_us)
        for state in _find_first_states(store, check, comparison):
            result = _add_result(check, comparison, state)
            if state == CheckState.FAILED:
                of_b = Selection((campaign_id,), (Condition("axis_root", "=", check.b),))
                rows = store.measurements(of_b, ("failure_message",))
                message = next(filter(None, (row["failure_message"] for row in rows)), "")
                text = f"{message}\n{result.text}".lstrip()
                # It is the newer one, which a slowdown of other work does not end.
                id_ = hash_identity(check.id, state)
                result = replace(result, id=id_, checked_us=now_us + 1, text=text)
            checks.append(result)
    return checks


def _find_first_states(
    store: Store, check: ReleaseCheck, comparison: Comparison
) -> list[CheckState]:
    """Find the state of a check, or those of a new failure and of a new slowdown beside it."""
    earlier = list_decisive(_list_same_checks(ReleaseCheckTable(store), check))
    failed = [other for other in earlier if other.state == CheckState.FAILED]
    failed_rows = (row for other in failed for row in store.verdicts(other.comparison_id))
    failing = {*map(identify_work, _list_failed_rows(comparison.verdicts))}
    slower = {*map(identify_work, select_slower_rows(comparison.verdicts))}
    open_checks = [other for other in earlier if not _answers(store, other, comparison.verdicts)]
    fails_anew = failing - {*map(identify_work, _list_failed_rows(failed_rows))}
    runs_again = any(other not in open_checks for other in failed)
    slows_anew = slower if runs_again else slower - _identify_known(store, earlier)
    new_work = {CheckState.FAILED: fails_anew, CheckState.SUSPECTED: slows_anew}
    states = [state for state, work in new_work.items() if work]
    return states or [CheckState.KNOWN if slower or failing or open_checks else CheckState.CLEAR]


def _identify_known(store: Store, checks: Iterable[ReleaseCheck]) -> set[tuple[object, ...]]:
    """Identify what was slower in those of some checks that are open or confirmed."""
    ids = (check.comparison_id for check in checks if check.state in LASTING_STATES)
    rows = (row for id_ in ids for row in store.verdicts(id_))
    return {identify_work(row) for row in rows if row.verdict == Verdict.SLOWER}


def _answers(store: Store, earlier: ReleaseCheck, rows: Iterable[VerdictRow]) -> bool:
    """Return whether verdicts decide all that an earlier check found slower, or are of all that failed."""
    before = store.verdicts(earlier.comparison_id)
    open_rows, answers = _list_failed_rows(before), {*Verdict} - {*ONE_SIDED_VERDICTS}
    if earlier.state != CheckState.FAILED:
        open_rows, answers = select_slower_rows(before), {*DECIDED_VERDICTS}
    answered = {identify_work(row) for row in rows if row.verdict in answers}
    return answered.issuperset(map(identify_work, open_rows))


def _list_failed_rows(rows: Iterable[VerdictRow]) -> list[VerdictRow]:
    """List the rows of work that only the older side could do."""
    return [
        row
        for row in rows
        if row.verdict == Verdict.FAILED and row.evidence.jobs_a and not row.evidence.jobs_b
    ]


def _list_same_checks(table: ReleaseCheckTable, check: ReleaseCheck) -> Iterator[ReleaseCheck]:
    """List the checks of the same test, server and releases, the newest first."""
    pair = identify_pair(check)
    return (other for other in table.list_checks(release=check.b) if identify_pair(other) == pair)


@dataclass(frozen=True)
class _Server:
    """Server whose versions are compared, with the measurements that read from it."""

    label: str
    axis: str
    conditions: tuple[Condition, ...]


def _list_server_versions(
    table: ReleaseCheckTable, campaign_id: str
) -> dict[_Server, dict[str, int]]:
    """List the versions of each server that a campaign read from, with the last use of each."""
    versions: defaultdict[_Server, dict[str, int]] = defaultdict(dict)
    for row in table.list_servers(campaign_id):
        place = tuple(Condition(name, "=", row[name]) for name in ("storage_site", "door"))
        for axis, suffix in _SERVER_AXES.items():
            if version := row[axis]:
                server = _Server(f"{row['storage_site']}:{row['door']}{suffix}", axis, place)
                last_us = versions[server].get(version, 0)
                versions[server][version] = max(last_us, row["last_us"])
    return dict(versions)


def _check_servers(
    store: Store, table: ReleaseCheckTable, campaign_id: str, now_us: int
) -> list[ReleaseCheck]:
    """Compare the version of each server with the one before, until a comparison has verdicts."""
    checks = []
    versions = {
        server: max(times, key=times.__getitem__)
        for server, times in _list_server_versions(table, campaign_id).items()
    }
    for earlier in table.list_earlier_campaigns(campaign_id, MAX_EARLIER) if versions else ():
        for server, times in _list_server_versions(table, earlier.id).items():
            b = versions.get(server)
            if b is None or b in times:
                continue
            a = max(times, key=times.__getitem__)
            check = _make_check(
                campaign_id, earlier.test_name, a, b, CheckState.CLEAR, now_us, server.label
            )
            is_done = any(
                same.checked_us > earlier.created_us for same in _list_same_checks(table, check)
            )
            if not is_done:
                selection = Selection((earlier.id, campaign_id), server.conditions)
                compared = _compare_values(store, selection, server.axis, (a, b), now_us)
                results = [
                    _add_result(check, comparison, _find_first_states(store, check, comparison)[-1])
                    for comparison in compared
                    if any(Verdict(row.verdict).is_statistical for row in comparison.verdicts)
                ]
                is_done = bool(results)
                checks += results
            if is_done:
                del versions[server]
    return checks


def _judge_rerun(store: Store, check: ReleaseCheck, now_us: int) -> ReleaseCheck:
    same_checks = _list_same_checks(ReleaseCheckTable(store), check)
    earlier = list_decisive(other for other in same_checks if other.checked_us < check.checked_us)
    slower = _identify_known(store, [check])
    suspects = slower - _identify_known(store, earlier)
    comparisons = _compare_rerun(store, check, now_us)
    rows = comparisons[0].verdicts if comparisons else ()
    is_known = slower and not suspects
    state = CheckState.KNOWN if is_known else judge_rerun(suspects, rows, check.reruns)
    judged = replace(check, state=state, changed_us=now_us)
    # A suspicion keeps its first comparison, which the next rerun repeats.
    if state in (CheckState.CONFIRMED, CheckState.REFUTED):
        judged = _add_result(judged, comparisons[0], state)
    if state == CheckState.REFUTED and not all(_answers(store, other, rows) for other in earlier):
        judged = replace(judged, state=CheckState.KNOWN)
    return judged


def _compare_rerun(store: Store, check: ReleaseCheck, now_us: int) -> list[Comparison]:
    """Compare with a rerun, which takes the place of the campaign that it repeats."""
    verdicts = store.verdicts(check.comparison_id)
    if not verdicts:
        return []
    evidence = verdicts[0].evidence
    campaigns = [id_ for id_ in evidence.campaigns or () if id_ != check.campaign_id]
    selection = Selection.parse([*campaigns, check.rerun_id], evidence.where or ())
    return _compare_values(store, selection, verdicts[0].axis, (check.a, check.b), now_us)


def _compare_values(
    store: Store, selection: Selection, axis: str, values: Sequence[str], now_us: int
) -> list[Comparison]:
    """Compare further values of an axis with the first and store the verdicts; nothing for fewer."""
    if len(values) < 2:
        return []
    rows = load_headline_rows(store, selection, SAMPLE_COLUMNS)
    queries = compare_with_first(axis, values, delta=DEFAULT_DELTA, selection=selection)
    try:
        comparisons = compare_together(map(Sample.from_row, rows), queries, now_us=now_us)
    except NothingToDoError:
        return []
    for comparison in comparisons:
        store.replace_comparison(comparison.query.id, comparison.pairs, comparison.verdicts)
    return comparisons


def _make_check(
    campaign_id: str,
    test_name: str,
    a: str,
    b: str,
    state: CheckState,
    now_us: int,
    server: str = "",
) -> ReleaseCheck:
    id_ = hash_identity("release check", campaign_id, a, b, *filter(None, [server]))
    check = ReleaseCheck(id_, campaign_id, test_name, a, b, state, server=server)
    return replace(check, checked_us=now_us, changed_us=now_us)


def _add_result(check: ReleaseCheck, comparison: Comparison, state: CheckState) -> ReleaseCheck:
    rows = select_decisive_rows(comparison.verdicts)
    slower_rows = [] if state == CheckState.FAILED else select_slower_rows(comparison.verdicts)
    slower = sorted(slower_rows, key=lambda row: -abs(row.effect or 0.0))
    failed = [f"{row.label}: {row.evidence.why}" for row in _list_failed_rows(comparison.verdicts)]
    return replace(
        check,
        state=state,
        comparison_id=comparison.query.id,
        compared=sum(Verdict(row.verdict).is_decided for row in rows),
        slower=len(slower),
        effect=slower[0].effect if slower else None,
        text="\n".join([*map(_describe_row, slower), *dict.fromkeys(failed)][:MAX_LISTED]),
    )


def identify_work(row: VerdictRow) -> tuple[object, ...]:
    """Identify what a verdict is about, whatever version of the test measured it."""
    return row.site, row.metric, row.evidence.of_b.get("variant"), row.evidence.of_b.get("door")


def _describe_row(row: VerdictRow) -> str:
    effect = "" if row.effect is None else f" {format_effect(row.effect)}"
    interval = f" ({format_interval(row)})" if format_interval(row) else ""
    return f"{row.label}, {title_metric(row.metric)}:{effect}{interval} {describe_place(row)}"
