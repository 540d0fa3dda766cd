"""States of sites told by simulated stories: broken, recovered, flapping, central, late, excepted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import sqlalchemy as sa
from measurement_factory import make_campaign_row, make_job_row
from status_story import HOUR_US, STORY_US, make_downtime, make_override, make_run

from treehammer.analysis.status.site_status import StatusUpdate, update_states
from treehammer.analysis.status.status_rules import StatusRules, parse_status_rules
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.schema import status_rule_set
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.watch import state_history
from treehammer.sql.write.store import Store

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


def run_tests(
    from_h: float, to_h: float, *, good: bool, site: str = "A", every_h: float = 0.5
) -> list[Measurement]:
    """Run both tests of a site regularly."""
    times = [from_h + every_h * n for n in range(round((to_h - from_h) / every_h))]
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
    evidence = json.loads(current.evidence)
    assert evidence["tests"]["read"] == {"succeeded": 3, "failed": 3}
    assert evidence["failures"] == {"open": 6}
    assert len(evidence["measurements"]) == len(evidence["jobs"]) == 6
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
    assert history(store) == []
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
    for number, site in enumerate(sites):
        shift = number * 0.25
        store.add(run_tests(0, 4, good=True, site=site))
        # F has been broken before.
        store.add(run_tests(4, 5, good=site != "F", site=site))
        store.add(run_tests(5, 8 + shift, good=False, site=site))
        # A stays broken when the others recover.
        store.add(run_tests(8 + shift, 18, good=site not in "AF", site=site))
    evaluate(store, 6.1)
    changes = state_history.list_state_changes(store)
    [central] = [row for row in changes if row.subject_kind == state_history.CENTRAL]
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
    kept = state_history.list_state_changes(store, site="A", superseded=True)
    [wrong] = [row for row in kept if row.superseded_us]
    assert (wrong.state, wrong.superseded_us) == ("critical", START + 6.5 * HOUR)
    assert json.loads(wrong.evidence)["failures"] == {"open": 6}


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


def test_a_downtime_announced_late_corrects_the_history(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 6, good=False))
    evaluate(store, 6)
    done = state_history.replace_downtimes(store, "goc", [make_downtime(4, 8)], START + 6 * HOUR)
    assert done.new == 1
    evaluate(store, 6.2)
    assert history(store) == [(1, "ok"), (4, "downtime")]
    withdrawn = state_history.replace_downtimes(store, "goc", [], START + round(6.4 * HOUR))
    assert withdrawn.withdrawn == 1
    evaluate(store, 6.5)
    assert history(store) == [(1, "ok"), (5, "critical")]


def test_a_risk_is_no_downtime(store: Store) -> None:
    store.add(run_tests(0, 2, good=True))
    state_history.replace_downtimes(store, "goc", [make_downtime(1, 3, severity="at-risk")], START)
    evaluate(store, 2)
    assert history(store) == [(1, "ok")]


def test_an_override_holds_until_its_end(store: Store) -> None:
    store.add(run_tests(0, 8, good=True))
    evaluate(store, 2)
    state_history.add_override(store, make_override(3, 6))
    evaluate(store, 4)
    assert history(store) == [(1, "ok"), (3, "critical")]
    current = state_history.list_current_states(store, site="A")[0]
    assert current.cause == "override"
    assert current.reason.startswith("set by ada: disk server burns (by the rules ok: ")
    state_history.end_overrides(store, "A", now_us=START + 5 * HOUR, who="bob")
    evaluate(store, 8)
    assert history(store)[-1] == (5, "ok")
    [kept] = state_history.list_overrides(store)
    assert (kept.who, kept.ended_by, kept.until_us) == ("ada", "bob", START + 6 * HOUR)


def test_new_rules_do_not_rewrite_history(store: Store) -> None:
    store.add(run_tests(0, 4, good=True) + run_tests(4, 6, good=False))
    evaluate(store, 5.5)
    patient = parse_status_rules(EXCLUSION.replace("failed_runs = 3", "failed_runs = 9"), "r.toml")
    evaluate(store, 5.8, patient)
    assert history(store) == [(1, "ok"), (5, "critical")]
    with store.connection() as connection:
        documents = connection.scalars(sa.select(status_rule_set.c.document)).all()
    stored = [json.loads(one)["rules"]["exclusion"]["failed_runs"] for one in documents]
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


SPEED = """
step = "10m"
reevaluate = "2d"
[rules.speed]
kind = "speed"
window = "2h"
reference = "12h"
min_runs = 3
max_ratio = 1.5
clear_below = 1.2
sites = ["site"]
"""


def run_timed(hours: float, event_s: float, series: str = "s") -> Measurement:
    row = run_test(hours, good=True)
    return replace(row, values={**row.values, "wall_per_event_s": event_s, "series": series})


def test_a_site_that_becomes_slower_has_a_warning_until_it_is_fast_again(store: Store) -> None:
    store.add(run_timed(number / 2, 0.004 if 16 <= number < 24 else 0.001) for number in range(36))
    update = evaluate(store, 17.9, parse_status_rules(SPEED, "rules.toml"))
    assert [state for _, state in tell(update.changes)] == ["ok", "warning", "ok"]
    slow, fast = tell(update.changes)[1:]
    assert (8.5 <= slow[0] <= 9.5, 12.5 <= fast[0] <= 13.5) == (True, True)
    warning = update.changes[1]
    assert warning.reason == "an event takes 2.5 times the wall time of the 12h before"
    assert json.loads(warning.evidence)["ratio"] == 2.5


def test_another_test_or_mix_of_work_is_not_slower(store: Store) -> None:
    store.add(run_timed(number / 2, 0.001) for number in range(12))
    store.add(run_timed(6 + number / 2, 0.009, series="new payload") for number in range(4))
    update = evaluate(store, 8, parse_status_rules(SPEED, "rules.toml"))
    assert "warning" not in [state for _, state in tell(update.changes)]


def test_a_slow_site_keeps_its_warning_while_it_runs_less_often(store: Store) -> None:
    store.add(run_timed(number / 2, 0.001) for number in range(16))
    store.add(run_timed(hours, 0.004) for hours in (8, 8.3, 8.6, 11, 14))
    update = evaluate(store, 16, parse_status_rules(SPEED, "rules.toml"))
    assert [state for _, state in tell(update.changes)] == ["ok", "warning"]
