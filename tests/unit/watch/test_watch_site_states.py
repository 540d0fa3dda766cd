"""States of sites and days by simulated stories, and the use of sites that follows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import pytest
import sqlalchemy as sa
from measurement_factory import (
    HOUR_US,
    STORY_US,
    make_campaign_row,
    make_downtime,
    make_job_row,
    make_measurement,
    make_operation,
    make_override,
    make_run,
)
from repository_code import invoke_command

from treehammer.analysis.status.day_outcomes import (
    MAX_FAILED_PER_SUCCESS,
    DayOutcomes,
    OperationsRule,
)
from treehammer.analysis.status.site_uses import SiteState, SiteUses, Usability
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core import subjects
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.schema import status_rule_set
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_overview import assess_site
from treehammer.watch.states.rule_judgements import (
    ReplayWindow,
    RuleMemory,
    RunWindow,
    StateJudgement,
    judge_runs,
    replay_rule,
)
from treehammer.watch.states.site_status import (
    StatusUpdate,
    find_probe_time,
    list_uses,
    refresh_uses,
    update_states,
)
from treehammer.watch.states.status_rules import (
    RULES_FILE,
    OperationsStatusRule,
    ShareRule,
    StatusRule,
    StatusRules,
    WindowRule,
    load_shipped_rules,
    parse_status_rules,
)
from treehammer.watch.store import state_history

HOUR, START = HOUR_US, STORY_US
EXCLUSION = """
step = "10m"
reevaluate = "1d"
[central]
min_sites = 3
[rules.exclusion]
kind = "tests"
window = "3h"
failed_runs = 3
failing_tests = 2
recovery_runs = 2
hold = "2h"
forget = "6h"
sites = ["site"]
"""
RULES = parse_status_rules(EXCLUSION, "rules.toml")
_NUMBERS = count()


def run_test(
    hours: float, *, good: bool, site: str = "A", test: str = "read", storage: str = ""
) -> Measurement:
    job = f"job{next(_NUMBERS)}"
    return make_run(job, hours, good=good, site=site, test=test, storage=storage)


def run_tests(from_h: float, to_h: float, *, good: bool, site: str = "A") -> list[Measurement]:
    """Run both tests of a site every half hour."""
    times = [from_h + 0.5 * n for n in range(round(2 * (to_h - from_h)))]
    return [
        run_test(at, good=good, site=site, test=test) for at in times for test in ("read", "load")
    ]


def evaluate(store: Store, hours: float, rules: StatusRules = RULES) -> StatusUpdate:
    return update_states(store, START + round(hours * HOUR), rules)


def tell(changes: Iterable[StatusChangeRow], site: str = "A") -> list[tuple[float, str]]:
    """Tell the changes of a site as hours and states."""
    return [
        (round((row.since_us - START) / HOUR, 2), row.state)
        for row in changes
        if (row.site, row.subject_kind) == (site, "site")
    ]


def history(store: Store, site: str = "A") -> list[tuple[float, str]]:
    return tell(state_history.list_state_changes(store), site)


def test_a_broken_site_is_excluded_until_all_its_tests_succeed(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 8, good=False))
    evaluate(store, 6)
    [current] = state_history.list_current_states(store, site="A")[:1]
    # Failures at 4:00, 4:30 and 5:00 of both tests.
    assert history(store) == [(1, "ok"), (5, "critical")]
    assert current.reason == "the last 3 runs of 2 tests failed: load, read"
    evidence = current.evidence
    assert evidence.tests is not None
    assert evidence.tests["read"] == {"succeeded": 3, "failed": 3}
    assert evidence.failures == {"open": 6}
    assert len(evidence.measurements or ()) == len(evidence.jobs or ()) == 6
    assert current.rule_version == RULES.rules["exclusion"].version
    # One test alone does not make it whole.
    store.add(run_test(hours, good=True, test="read") for hours in (8, 8.5, 9))
    store.add(run_test(hours, good=False, test="load") for hours in (8, 8.5, 9))
    evaluate(store, 9.2)
    assert history(store)[-1] == (5, "critical")
    store.add(run_test(hours, good=True, test="load") for hours in (9.5, 10))
    evaluate(store, 10.5)
    assert history(store)[-1] == (10, "ok")


def test_how_often_states_are_evaluated_does_not_matter(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 6, good=False) + run_tests(6, 9, good=True))
    for hours in (1.1, 3.3, 5.5, 6.1, 6.9, 9):
        evaluate(store, hours)
    assert history(store) == [(1, "ok"), (5, "critical"), (6.5, "ok")]
    assert not [
        row
        for row in state_history.list_state_changes(store, superseded=True, rules=True)
        if row.superseded_us
    ]
    assert not evaluate(store, 9.1).changes


def test_a_flapping_site_is_not_excluded_again_at_once(store: Store) -> None:
    store.add(
        run_tests(0, 2, good=False) + run_tests(2, 3, good=True) + run_tests(3, 6, good=False)
    )
    evaluate(store, 6)
    # Recovered at 2:30; failing again from 4:00, within the hold of two hours.
    assert history(store) == [(1, "critical"), (2.5, "ok"), (4, "warning"), (4.5, "critical")]
    changes = state_history.list_state_changes(store, site="A")
    assert "no second exclusion within 2h" in changes[2].reason


def test_too_few_results_are_unknown(store: Store) -> None:
    store.add(run_tests(0, 1, good=False))
    evaluate(store, 1)
    assert (history(store), assess_site(store, "A").summary[:7]) == ([], "too few")
    store.add(run_tests(1, 2, good=False))
    evaluate(store, 2)
    assert history(store) == [(1, "critical")]
    # Without any run, an excluded site is unknown after a time.
    evaluate(store, 12)
    assert history(store)[-1] == (7.5, "unknown")


def test_failed_jobs_without_measurements_count(store: Store) -> None:
    jobs = [make_job_row(f"held{n}", site="A") for n in range(6)]
    store.add_campaign(make_campaign_row(test_name="read"), jobs[:3])
    store.add_campaign(
        make_campaign_row("other", test_name="load"),
        [replace(job, campaign_id="other") for job in jobs[3:]],
    )
    store.set_attempts(
        AttemptRow(
            job.id, 1, "held", START, START + (n % 3 + 1) * HOUR // 2, None, "held", "no disk"
        )
        for n, job in enumerate(jobs)
    )
    evaluate(store, 2)
    assert history(store) == [(1.5, "critical")]


def test_failures_of_another_sites_storage_are_charged_to_it(store: Store) -> None:
    rules = parse_status_rules(EXCLUSION.replace('["site"]', '["site", "storage_site"]'), "r.toml")
    for test in ("read", "load"):
        store.add(
            run_test(hours, good=False, site="A", storage="B", test=test) for hours in (1, 2, 2.5)
        )
    evaluate(store, 3, rules)
    states = state_history.list_current_states(store)
    assert [(row.subject_kind, row.site, row.state) for row in states] == [
        ("storage_site", "B", "critical")
    ]


def test_a_central_event_suspends_exclusion(store: Store) -> None:
    sites = "ABCDEF"
    measurements = []
    for number, site in enumerate(sites):
        shift = number * 0.25
        measurements += run_tests(0, 4, good=True, site=site)
        # F has been broken before.
        measurements += run_tests(4, 5, good=site != "F", site=site)
        measurements += run_tests(5, 8 + shift, good=False, site=site)
        # A stays broken when the others recover.
        measurements += run_tests(8 + shift, 18, good=site not in "AF", site=site)
    store.add(measurements)
    evaluate(store, 6.1)
    changes = state_history.list_state_changes(store)
    [central] = [row for row in changes if row.subject_kind == subjects.CENTRAL]
    assert (central.site, central.state) == ("site", "critical")
    states = {row.site: row for row in state_history.list_current_states(store)}
    assert states["B"].state == "warning"
    assert states["B"].cause == "central"
    assert states["B"].reason.startswith("central: ")
    evaluate(store, 18)
    after = {row.site: row for row in state_history.list_current_states(store)}
    assert [after[site].state for site in "BCDE"] == ["ok"] * 4
    assert not any(state == "critical" for site in "BCDE" for _, state in history(store, site))
    # It did not recover within the grace after the event.
    assert after["A"].state == "critical"
    events = [
        row.state
        for row in state_history.list_state_changes(store)
        if row.subject_kind == "central"
    ]
    assert events == ["critical", "ok"]


def test_late_results_supersede_a_change(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 6, good=False))
    evaluate(store, 6)
    assert history(store)[-1] == (5, "critical")
    # Good runs of one test at the same time were delayed in the outbox of their node.
    store.add(run_test(hours, good=True, test="read") for hours in (4.2, 4.7, 5.2, 5.7))
    update = evaluate(store, 6.5)
    assert tell(update.superseded) == [(5, "critical")]
    assert history(store) == [(1, "ok"), (5, "warning")]
    state_changes = state_history.list_state_changes(store, site="A", superseded=True)
    [wrong] = [row for row in state_changes if row.superseded_us]
    assert (wrong.state, wrong.superseded_us) == ("critical", START + 6.5 * HOUR)
    assert wrong.evidence.failures == {"open": 6}


def test_failures_in_a_downtime_do_not_count(store: Store) -> None:
    store.add(
        run_tests(0, 4, good=True) + run_tests(4, 8, good=False) + run_tests(8, 10, good=True)
    )
    state_history.replace_downtimes(store, "goc", [make_downtime(3.75, 7.9)], START)
    evaluate(store, 7)
    assert history(store) == [(1, "ok"), (3.75, "downtime")]
    evaluate(store, 10)
    assert history(store)[-1][1] == "ok"
    assert "critical" not in [state for _, state in history(store)]


def test_failures_of_a_storage_in_a_downtime_do_not_count_for_jobs(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 8, good=False))
    downtime = replace(make_downtime(3.75, 9), subject_kind="storage_site")
    state_history.replace_downtimes(store, "goc", [downtime], START)
    evaluate(store, 8)
    assert "critical" not in [state for _, state in history(store)]
    # A downtime of the jobs does not excuse the storage, and one of B's storage not A's.
    for other in (replace(downtime, subject_kind="site"), replace(downtime, site="B")):
        state_history.replace_downtimes(store, "goc", [other], START)
        update = evaluate(store, 8.1 if other.site == "A" else 8.2)
        assert update.recorded
    assert history(store)[-1] == (5, "critical")


@pytest.mark.parametrize("kind", ["", "site", "storage_site"])
def test_figures_of_a_check_count_what_its_state_counts(store: Store, kind: str) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 8, good=False))
    update_states(store, START + 8 * HOUR, load_shipped_rules())
    before = {figure.name: figure.value for figure in assess_site(store, "A").figures}
    assert before["daily_bad"]
    downtime = replace(make_downtime(3.75, 9), subject_kind=kind)
    state_history.replace_downtimes(store, "goc", [downtime], START)
    update_states(store, START + 8 * HOUR + 1, load_shipped_rules())
    during = {figure.name: figure.value for figure in assess_site(store, "A").figures}
    assert during == {**before, "daily_bad": 0, "daily_bad_per_good": 0}


def test_sentence_of_a_check_counts_what_its_figures_count(store: Store) -> None:
    """Failures go on after the one that made the state a warning."""
    store.add(run_tests(0, 24, good=True) + [run_test(h / 2 + 0.3, good=False) for h in range(40)])
    rules = parse_status_rules(RULES_FILE.read_text().partition("[rules.storage-load]")[0], "r")
    for hours in (5, 19):
        update_states(store, START + hours * HOUR, rules)
    state = assess_site(store, "A")
    figures = {figure.name: figure.value for figure in state.figures}
    assert (figures["daily_bad"], figures["daily_good"]) == (38, 78)
    assert state.summary == "jobs: 38 of 116 measurements in 24h were bad"
    assert state.details[0].endswith("by daily: 3 of 11 measurements in 24h were bad")


def test_a_new_announcement_of_the_same_state_is_a_change(store: Store) -> None:
    def until() -> list[tuple[str, float]]:
        states = state_history.list_current_states(store, site="A")
        ends = {(row.state, (row.evidence.until_us or 0) - START) for row in states}
        return sorted((state, end / HOUR) for state, end in ends)

    state_history.add_override(store, make_override(1, 6))
    evaluate(store, 2)
    state_history.add_override(store, replace(make_override(3, 9), why="still burns"))
    evaluate(store, 4)
    assert until() == [("critical", 9)]
    assert history(store) == [(1, "critical"), (3, "critical")]
    state_history.end_overrides(store, "A", now_us=START + 5 * HOUR, who="bob")
    state_history.replace_downtimes(store, "goc", [make_downtime(6, 8)], START)
    evaluate(store, 7)
    assert until() == [("downtime", 8)]
    state_history.replace_downtimes(store, "goc", [make_downtime(6, 12)], START)
    evaluate(store, 7.5)
    assert until() == [("downtime", 12)]


def test_a_downtime_announced_late_corrects_the_history(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 6, good=False))
    evaluate(store, 6)
    state_history.replace_downtimes(store, "goc", [make_downtime(4, 8)], START + 6 * HOUR)
    evaluate(store, 6.2)
    assert history(store) == [(1, "ok"), (4, "downtime")]
    withdrawn = state_history.replace_downtimes(store, "goc", [], START + round(6.4 * HOUR))
    assert withdrawn.withdrawn == 1
    evaluate(store, 6.5)
    assert history(store) == [(1, "ok"), (4, "downtime"), (6.4, "unknown")], "it was announced"


def test_a_risk_is_no_downtime(store: Store) -> None:
    store.add(run_tests(0, 2, good=True))
    state_history.replace_downtimes(store, "goc", [make_downtime(1, 3, severity="at-risk")], START)
    evaluate(store, 2)
    assert history(store) == [(1, "ok")]


def test_an_override_holds_until_its_end(store: Store) -> None:
    store.add([*run_tests(0, 8, good=True), run_test(1.2, good=False)])
    evaluate(store, 2)
    state_history.add_override(store, make_override(3, 6))
    evaluate(store, 4)
    assert history(store) == [(1, "ok"), (3, "critical")]
    current = state_history.list_current_states(store, site="A")[0]
    assert (current.cause, current.evidence.explanation) == ("override", None)
    assert current.reason.startswith("set by ada: disk server burns (by the rules ok: ")
    state_history.end_overrides(store, "A", now_us=START + 5 * HOUR, who="bob")
    evaluate(store, 8)
    assert history(store)[-1] == (5, "ok")
    [override] = state_history.list_overrides(store)
    assert (override.who, override.ended_by, override.until_us) == ("ada", "bob", START + 6 * HOUR)


def test_new_rules_do_not_rewrite_history(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 6, good=False))
    evaluate(store, 5.5)
    patient = parse_status_rules(EXCLUSION.replace("failed_runs = 3", "failed_runs = 9"), "r.toml")
    evaluate(store, 5.8, patient)
    assert history(store) == [(1, "ok"), (5, "critical")]
    with store.connection() as connection:
        documents = connection.scalars(sa.select(status_rule_set.c.document)).all()
    stored = [json.loads(document)["rules"]["exclusion"]["failed_runs"] for document in documents]
    assert sorted(stored) == [3, 9]
    share = parse_status_rules(
        '[rules.share]\nkind = "share"\nwindow = "3h"\nmin_measurements = 3\nmax_failed_per_success = 0.06\nclear_below = 0.04',
        "r.toml",
    )
    evaluate(store, 6, share)
    retired = [
        row
        for row in state_history.list_state_changes(store, rules=True)
        if row.rule == "exclusion"
    ]
    assert retired[-1].state == "unknown"
    assert state_history.list_current_states(store, site="A")[0].state == "warning"


def test_an_evaluation_of_the_past_is_not_recorded(store: Store) -> None:
    store.add(run_tests(0, 4, good=True))
    assert evaluate(store, 4).recorded
    assert not evaluate(store, 3).recorded
    # Clocks that are ahead of the database's are set back.
    assert all(evaluate(store, hours).recorded for hours in (1_000_000, 999_999))


LACKS = "software-setup: not supported"


@pytest.mark.parametrize(
    "outcomes, status, text",
    [
        ({}, SiteState.UNKNOWN, "nothing was measured"),
        ({"good": 100, "open": 6}, SiteState.OK, "100 of 106 good, 6 failed"),
        (
            {"good": 100, "open": 6, "implausible": 1},
            SiteState.WARNING,
            "100 of 107 good, 6 failed, 1 implausible",
        ),
        ({"open": 1}, SiteState.CRITICAL, "0 of 1 good, 1 failed"),
        ({"good": 2, LACKS: 2}, SiteState.OK, "2 of 2 good, 2 not supported"),
        ({"open": 1, LACKS: 2}, SiteState.CRITICAL, "0 of 1 good, 1 failed, 2 not supported"),
        ({LACKS: 2}, SiteState.UNKNOWN, "2 not supported"),
    ],
)
def test_day_status_follows_outcomes(
    outcomes: Mapping[str, int], status: SiteState, text: str
) -> None:
    judged = DayOutcomes.from_outcomes(outcomes)
    assert (judged.status, str(judged)) == (status, text)
    assert judged.total == sum(outcomes.values())


@pytest.mark.parametrize(
    "good, failed, severity",
    [(100, 6, 0), (93, 7, 1), (75, 25, 2), (51, 49, 2), (50, 50, 3), (1, 99, 3), (0, 9, 0)],
)
def test_warnings_are_graded_by_share(good: int, failed: int, severity: int) -> None:
    assert DayOutcomes(good, failed, 0).severity == severity


def test_days_are_graded_as_by_the_shipped_daily_rule() -> None:
    rule = load_shipped_rules().list_rules(ShareRule)[0]
    assert rule.max_failed_per_success == MAX_FAILED_PER_SUCCESS


def test_load_tests_are_judged_as_by_the_shipped_rule() -> None:
    rule = load_shipped_rules().list_rules(OperationsStatusRule)[0]
    assert rule.version == OperationsRule().version


summarize = partial(invoke_command, "summary")


def test_letters_are_printed(store: Store, tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    result = summarize(tmp_path, "--letters")
    assert "no load test ran" in str(result.exception)
    steps = [make_operation([0.001] * 20, {"refused": 5})]
    store.add([make_measurement(day=day_to_number(today), operations=steps)])
    [line] = json.loads(summarize(tmp_path, "--letters", "--json").stdout)
    assert (line["storage_site"], line["day"], line["letter"]) == ("local", str(today), "W")
    assert (line["opened"], line["open_failed"], line["block_s"]) == (20, 5, None)
    output = summarize(tmp_path, "--letters").output
    assert "5 of 25 opens failed" in output
    assert ", after study S1" in output
    assert summarize(tmp_path, "--letters", "--by", "site").exit_code == 2


USE_RULES = load_shipped_rules()
STEP_US = USE_RULES.step_us


def evaluate_use(store: Store, hours: float) -> SiteUses:
    """Evaluate the states by the shipped rules."""
    update_states(store, STORY_US + round(hours * HOUR_US), USE_RULES)
    return list_uses(store)


def add_runs(
    store: Store, good: Sequence[bool], test: str = "read", site: str = "A", failure: str = "open"
) -> None:
    """Add runs of a test at a site, one every ten minutes."""
    store.add(
        make_run(
            f"{site}{test}{number}", number / 6, good=is_good, site=site, test=test, failure=failure
        )
        for number, is_good in enumerate(good)
    )


def test_only_test_of_a_site_excludes_it_and_its_probes_bring_it_back(store: Store) -> None:
    add_runs(store, [True, False, False, False])
    use = evaluate_use(store, 1).find("site", "A")
    assert use is not None
    assert (use.usability, use.cause, use.who) == (Usability.PROBE_ONLY, "exclusion", "exclusion")
    assert use.reason == "the last 3 runs of 1 test failed: read"
    assert (use.since_us, use.until_us) == (STORY_US + HOUR_US // 2, None)
    add_runs(store, [True, False, False, False, True, True])
    assert evaluate_use(store, 2).summarize("A") is Usability.USABLE


@pytest.mark.parametrize(
    "runs, failure, reason",
    [
        ({"read": [False, True, False] * 4}, "open", "more than 50 % of the runs of 1 test failed"),
        ({"read": [False, True, False] * 3}, "open", ""),
        ({"read": [False] * 6, "load": [True] * 6}, "open", ""),
        # Failures of the test itself count against no site.
        ({"read": [False] * 6}, "payload", ""),
    ],
)
def test_share_of_failures_excludes_a_site(
    store: Store, runs: Mapping[str, Sequence[bool]], failure: str, reason: str
) -> None:
    for test, outcomes in runs.items():
        add_runs(store, outcomes, test, failure=failure)
    uses = evaluate_use(store, 3)
    assert uses.summarize("A") is (Usability.PROBE_ONLY if reason else Usability.USABLE)
    use = uses.find("site", "A")
    assert not reason or (use and use.reason.startswith(reason))


def test_machine_of_a_developer_is_excluded_by_people_only(store: Store) -> None:
    add_runs(store, [False] * 6, site="local")
    use = evaluate_use(store, 2).find("site", "local")
    assert use is not None
    assert (use.state, use.usability) == ("critical", Usability.USABLE)
    override = replace(make_override(1, 9), site="local")
    state_history.add_override(store, override)
    assert evaluate_use(store, 3).summarize("local") is Usability.EXCLUDED


def test_override_and_downtime_exclude_until_their_end(store: Store) -> None:
    state_history.replace_downtimes(store, "goc", [make_downtime(1, 3)], STORY_US)
    use = evaluate_use(store, 2).find("storage_site", "A")  # which has no result yet
    assert use is not None
    assert (use.usability, use.who, use.until_us) == (
        Usability.EXCLUDED, "goc", STORY_US + 3 * HOUR_US,
    )  # fmt: skip
    assert use.describe() == (
        "excluded since 2026-03-01 01:00 until 2026-03-01 03:00 UTC, downtime by goc: new disks"
    )
    described = evaluate_use(store, 2.1).describe_restrictions("A")
    assert described == f"jobs and storage {use.describe()}"
    assert evaluate_use(store, 4).summarize("A") is Usability.USABLE
    state_history.add_override(store, make_override(5, 9))
    use = evaluate_use(store, 6).find("site", "A")
    assert use is not None
    assert (use.usability, use.who, use.until_us) == (
        Usability.EXCLUDED, "ada", STORY_US + 9 * HOUR_US,
    )  # fmt: skip
    state_history.add_override(store, make_override(7, 9, "warning"))
    assert evaluate_use(store, 8).summarize("A") is Usability.USABLE
    assert assess_site(store, "A").summary.endswith("(by the rules unknown: too few results)")


def test_probes_follow_the_state(store: Store) -> None:
    add_runs(store, [False] * 4)
    restrictions = evaluate_use(store, 1).restrictions("A")
    every_us, since_us = USE_RULES.probes.every_us, restrictions[0].since_us
    assert every_us == 900_000_000
    assert find_probe_time(restrictions, every_us, since_us + every_us - 1) is None
    for periods in (1, 2, 9):
        due_us = since_us + periods * every_us
        assert find_probe_time(restrictions, every_us, due_us + 5) == due_us
    assert find_probe_time((), every_us, since_us + every_us) is None
    state_history.add_override(store, make_override(1, 9))
    excluded = evaluate_use(store, 2).restrictions("A")
    assert find_probe_time(excluded, every_us, since_us + 20 * every_us) is None


@pytest.mark.backends("sqlite")
def test_nothing_is_evaluated_where_nobody_ever_did(store: Store) -> None:
    add_runs(store, [False] * 4)
    now_us = STORY_US + HOUR_US
    assert refresh_uses(store, USE_RULES, now_us) == SiteUses()
    assert state_history.find_latest_rule_set(store) is None
    assert refresh_uses(store, USE_RULES, now_us, always=True).restrictions("A")
    assert not refresh_uses(store, USE_RULES, now_us + STEP_US - 1).find("site", "B")


def test_states_are_evaluated_again_after_a_step(store: Store) -> None:
    update_states(store, STORY_US, USE_RULES)
    add_runs(store, [False] * 4)
    assert not refresh_uses(store, USE_RULES, STORY_US + STEP_US - 1).restrictions("A")
    assert refresh_uses(store, USE_RULES, STORY_US + HOUR_US).restrictions("A")


def test_downtime_is_evaluated_without_any_evaluation_before(store: Store) -> None:
    state_history.replace_downtimes(store, "goc", [make_downtime(1, 3)], STORY_US)
    uses = refresh_uses(store, USE_RULES, STORY_US + 2 * HOUR_US)
    assert uses.summarize("A") is Usability.EXCLUDED


def add_door_runs(store: Store, hours: Sequence[float], doors: dict[str, bool]) -> None:
    """Add runs of a test through doors of site A, which work or fail."""
    store.add(
        make_run(f"{door}{number}", number + later, good=good, door=door)
        for number in hours
        for later, (door, good) in zip((0, 0.01), doors.items(), strict=False)
    )


def test_bad_door_is_critical_beside_a_good_one(store: Store) -> None:
    add_door_runs(store, [0.1, 0.2, 0.3, 0.4], {"https": False, "root": True})
    uses = evaluate_use(store, 1)
    doors = {name: use.usability for (kind, name), use in uses.by_subject.items() if kind == "door"}
    assert doors == {"A:https": Usability.PROBE_ONLY, "A:root": Usability.USABLE}
    assert (uses.summarize("A"), uses.describe_door("A", "root")) == (Usability.USABLE, "")
    assert "critical by exclusion: the last 3 runs" in uses.describe_door("A", "https")
    assert [use.site for use in uses.restricted_doors("A")] == ["A:https"]
    add_door_runs(store, [1.1, 1.2], {"https": True})
    assert not evaluate_use(store, 2).restricted_doors("A")


def test_only_door_of_a_storage_has_no_state(store: Store) -> None:
    add_door_runs(store, [0.1, 0.2, 0.3], {"https": False})
    assert {kind for kind, _ in evaluate_use(store, 1).by_subject} == {"site", "storage_site"}


def test_door_is_forgotten_without_runs_and_the_others_keep_their_history(store: Store) -> None:
    add_door_runs(store, [0.1, 0.2, 0.3], {"https": False, "root": True})
    assert evaluate_use(store, 1).restricted_doors("A")
    for day in range(8):
        add_door_runs(store, [24 * day + hour for hour in (2, 4, 6)], {"root": True})
        assert not evaluate_use(store, 24 * day + 7).restricted_doors("A")
    rows = state_history.list_state_changes(store, doors=True, superseded=True)
    assert not [row for row in rows if row.superseded_us]


def test_downtime_of_a_storage_excuses_its_doors(store: Store) -> None:
    state_history.replace_downtimes(store, "goc", [make_downtime(0, 1)], STORY_US)
    add_door_runs(store, [0.1, 0.2, 0.3], {"https": False, "root": True})
    uses = evaluate_use(store, 0.8)
    assert not uses.restricted_doors("A")
    assert uses.summarize("A") is Usability.EXCLUDED


def test_override_holds_for_one_door(store: Store) -> None:
    state_history.add_override(
        store, replace(make_override(0, 5), site="A:https", subject_kind="door")
    )
    uses = evaluate_use(store, 1)
    assert "excluded since" in uses.describe_door("A", "https")
    assert (uses.describe_door("A", "root"), uses.summarize("A")) == ("", Usability.USABLE)


def test_registered_rule_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusRule, "MODELS", dict(StatusRule.MODELS))

    class TideRule(WindowRule):
        """Warning when nothing ran at high water."""

        kind: Literal["tide"]

    @judge_runs.register(TideRule)
    def _judge_tide(rule: TideRule, window: RunWindow, _before: RuleMemory) -> StateJudgement:
        return StateJudgement(SiteState.WARNING, f"{len(window.runs)} runs in {rule.window}")

    text = RULES_FILE.read_text() + '[rules.water]\nkind = "tide"\nwindow = "24h"\n'
    rules = parse_status_rules(text, "status_rules.toml")
    rule = rules.rules["water"]
    assert isinstance(rule, TideRule)
    assert json.loads(rules.document)["rules"]["water"] == {"kind": "tide", "window": "24h"}
    latest = StatusChangeRow("", "site", "SITE_A", "water", "ok")
    (change,) = replay_rule(rule, [], latest, ReplayWindow(0, 100, 10), {})
    assert (change.since_us, change.state, change.reason) == (
        10,
        SiteState.WARNING,
        "0 runs in 24h",
    )
