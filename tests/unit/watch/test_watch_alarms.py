"""Alarms: events of states and recoveries, and suspected regressions."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from measurement_factory import build_change_point, make_campaign_row, make_job_row
from simulated_campaign import START_US, SimulatedCampaign, add_campaign

from treehammer.cli import cli
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.evidence import ChangeEvidence
from treehammer.sql.core.watch_rows import AlarmMessage, ReleaseCheck
from treehammer.sql.read.stored_comparisons import list_latest_comparisons
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_overview import (
    CheckState,
    assess_release,
    assess_releases,
    describe_step,
    judge_service,
    list_announced,
    list_regressions,
)
from treehammer.watch.alarms.alarm_watch import (
    find_change_points,
    find_regressions,
    find_state_changes,
)
from treehammer.watch.alarms.release_checks import (
    MAX_RERUNS,
    identify_work,
    judge_rerun,
    record_failed_release,
    record_rerun,
    requested_reruns,
    watch_campaigns,
)
from treehammer.watch.alarms.subject_state import AlarmKind, AlarmLevel, SubjectState
from treehammer.watch.pages.watch_tables import build_check_table
from treehammer.watch.store.alarms import EventTable, ReleaseCheckTable

HOUR = 3_600_000_000


@pytest.fixture
def event_table(store: Store) -> EventTable:
    return EventTable(store)


def observe(
    event_table: EventTable,
    level: AlarmLevel,
    now_us: int,
    *,
    excused: bool = False,
    rule: str = "daily/1",
) -> list[AlarmMessage]:
    """Record a site's state of the last five microseconds; return the new events."""
    site = SubjectState(
        AlarmKind.SITE, "SITE_A", level, "reason", ("detail",), since_us=now_us - 5,
        evidence="/sites/SITE_A", rule=rule, is_excused=excused,
    )  # fmt: skip
    events = find_state_changes([site], event_table.load_states(), now_us)
    return event_table.record_events(events)


def test_each_change_is_one_event(event_table: EventTable) -> None:
    assert observe(event_table, AlarmLevel.OK, 10) == []
    (event,) = observe(event_table, AlarmLevel.CRITICAL, 20)
    assert event.title == "CRITICAL: site SITE_A, was OK: reason"
    assert event.text == "reason\ndetail\nRule: daily/1"
    assert (event.severity, event.happened_us, event.evidence) == ("critical", 15, "/sites/SITE_A")
    assert observe(event_table, AlarmLevel.CRITICAL, 30) == []
    (event,) = observe(event_table, AlarmLevel.OK, 40)
    assert (event.title, event.severity) == ("OK: site SITE_A, was CRITICAL: reason", "critical")
    (event,) = observe(event_table, AlarmLevel.CRITICAL, 50)
    assert len(event_table.list_events(10)) == 3


def test_trouble_that_a_person_sets_anew_is_an_event(event_table: EventTable) -> None:
    """The override before ended between two rounds, or the new one replaces it."""
    observe(event_table, AlarmLevel.CRITICAL, 10, rule="override/1")
    (event,) = observe(event_table, AlarmLevel.CRITICAL, 20, rule="override/1")
    assert (event.title, event.severity) == ("CRITICAL: site SITE_A: reason", "critical")
    assert observe(event_table, AlarmLevel.CRITICAL, 20, rule="override/1") == []
    assert observe(event_table, AlarmLevel.CRITICAL, 30) == []


def test_processes_that_see_different_states_record_one_event(event_table: EventTable) -> None:
    observe(event_table, AlarmLevel.OK, 10)
    states = event_table.load_states()
    for level, now_us in ((AlarmLevel.CRITICAL, 30), (AlarmLevel.WARNING, 20)):
        site = SubjectState(AlarmKind.SITE, "SITE_A", level, "reason")
        event_table.record_events(find_state_changes([site], states, now_us))
    assert [event.state for event in event_table.list_events(10)] == ["CRITICAL"]
    # A process whose clock is behind continues the sequence.
    assert len(observe(event_table, AlarmLevel.WARNING, 20)) == 1
    assert observe(event_table, AlarmLevel.WARNING, 40) == []


@pytest.mark.parametrize(
    ("level", "events"),
    [
        (AlarmLevel.UNKNOWN, 0),
        (AlarmLevel.WARNING, 1),
    ],
)
def test_first_sight_is_an_event_only_in_trouble(
    event_table: EventTable, level: AlarmLevel, events: int
) -> None:
    assert len(observe(event_table, level, 10)) == events


def test_nobody_is_told_of_an_excused_state(event_table: EventTable) -> None:
    observe(event_table, AlarmLevel.OK, 10)
    assert observe(event_table, AlarmLevel.DOWNTIME, 20, excused=True) == []
    assert observe(event_table, AlarmLevel.WARNING, 30, excused=True) == []
    assert observe(event_table, AlarmLevel.OK, 40) == []
    assert observe(event_table, AlarmLevel.DOWNTIME, 50, excused=True) == []
    assert len(observe(event_table, AlarmLevel.CRITICAL, 60)) == 1


def test_recent_confirmed_slowdown_is_an_event() -> None:
    now_us = 1_790_000_000_000_000  # 2026-09-21
    slow = build_change_point(
        "c1",
        found_us=now_us,
        day=20260915,
        attribution="site",
        subject="SITE_A",
        evidence=ChangeEvidence(),
    )
    (event,) = find_change_points([slow], now_us)
    assert event.title.startswith("Change: Site SITE_A: ")
    assert "+5.1 %" in event.title
    assert (event.subject_kind, event.subject) == ("site", "SITE_A")
    assert event.evidence == "/changes/c1"
    for other in (
        replace(slow, effect=-0.05),
        replace(slow, state="provisional"),
        replace(slow, found_us=now_us - 8 * 24 * HOUR),
        replace(slow, day=20260801),
    ):
        assert list(find_change_points([other], now_us)) == []


@pytest.mark.parametrize(
    ("jobs", "age_h", "level", "summary"),
    [
        ({"running": 10, "held": 4}, 0, AlarmLevel.OK, "14 jobs in progress, 4 held"),
        ({"running": 10, "held": 5}, 0, AlarmLevel.WARNING, "5 held jobs"),
        ({"held": 9}, 0, AlarmLevel.CRITICAL, "9 held jobs"),
        ({}, None, AlarmLevel.OK, "0 jobs in progress, 0 held"),
        ({}, 2, AlarmLevel.WARNING, "states not evaluated for 2 h"),
        ({}, 30, AlarmLevel.CRITICAL, "states not evaluated for 30 h"),
    ],
)
def test_service_is_judged_by_jobs_and_age_of_states(
    jobs: dict[str, int], age_h: int | None, level: AlarmLevel, summary: str
) -> None:
    evaluated_us = None if age_h is None else (31 - age_h) * HOUR
    state = judge_service(jobs, evaluated_us, 31 * HOUR)
    assert (state.level, state.summary) == (level, summary)


NOW = START_US + 3_600_000_000
OLD, NEW = "6.38.00", "6.40.00"


def list_checks(store: Store) -> list[ReleaseCheck]:
    return ReleaseCheckTable(store).list_checks()


def check_campaign(store: Store, now_us: int, *plan: Any, **values: Any) -> list[ReleaseCheck]:
    """Add a finished campaign and return the changed checks."""
    add_campaign(store, *plan, **values)
    return watch_campaigns(store, now_us)


def rerun(
    store: Store, now_us: int, *plan: Any, seed: int = 2, **values: Any
) -> list[ReleaseCheck]:
    """Start the requested rerun, let it finish and return the changed checks."""
    (suspected,) = requested_reruns(store)
    identity = add_campaign(store, *plan, hosts=4, seed=seed, **values)
    assert record_rerun(store, suspected, identity, NOW)
    assert not record_rerun(store, suspected, "another", NOW)
    return watch_campaigns(store, now_us)


def test_campaign_without_regression_is_clear(store: Store) -> None:
    (check,) = check_campaign(store, NOW, "nightly", 0.0)
    assert (check.state, check.a, check.b, check.slower) == (CheckState.CLEAR, OLD, NEW, 0)
    assert check.compared > 0
    assert watch_campaigns(store, NOW) == []
    assert requested_reruns(store) == []
    assert assess_release(store, NEW).level is AlarmLevel.OK
    assert [(state.name, state.level) for state in assess_releases(store)] == [
        (OLD, AlarmLevel.UNKNOWN),
        (NEW, AlarmLevel.OK),
    ]


def test_regression_is_one_event_once_its_rerun_confirms_it(store: Store) -> None:
    campaign = add_campaign(store, "nightly", 0.08)
    (check,) = watch_campaigns(store, NOW)
    assert check.state == CheckState.SUSPECTED
    assert check.effect == pytest.approx(0.08, abs=0.02)
    assert "CPU" in check.text
    (suspected,) = requested_reruns(store)
    assert (suspected.campaign_id, suspected.reruns) == (campaign, 0)
    assert list(find_regressions(list_checks(store), NOW)) == []
    state = assess_release(store, NEW)
    assert state.level is AlarmLevel.WARNING
    assert state.evidence == f"/compare/{check.comparison_id}"
    assert len(store.verdicts(check.comparison_id)) >= check.compared
    (check,) = rerun(store, NOW, "again", 0.08)
    assert (check.state, check.reruns) == (CheckState.CONFIRMED, 1)
    (event,) = find_regressions(list_checks(store), NOW)
    assert event.title.startswith(
        "Regression: ttree-read is slower with ROOT 6.40.00 than with 6.38.00 by up to +"
    )
    assert event.evidence == f"/compare/{check.comparison_id}"
    # Evidence is the comparison of the rerun, which nobody selected for its result.
    verdicts = store.verdicts(check.comparison_id)
    assert any(check.rerun_id in (row.evidence.campaigns or ()) for row in verdicts)
    assert assess_release(store, NEW).level is AlarmLevel.CRITICAL
    assert watch_campaigns(store, NOW) == []


def add_failing(
    store: Store, name: str, of: tuple[str, ...] = ("1.0", "0.5"), **options: Any
) -> str:
    """Add a campaign in which executions of the last release fail, of some variants; return its identity."""
    id_ = hashlib.sha256(name.encode()).hexdigest()[:12]
    campaign = make_campaign_row(id_, name=name, created_us=START_US)
    store.add_campaign(campaign, [make_job_row(f"{name}-job", campaign_id=id_, state="done")])
    failure = {
        "failure_class": "payload", "failure_message": "core dumped",
        "cpu_per_event_s": None, "wall_per_event_s": None,
    }  # fmt: skip
    plan = SimulatedCampaign(name=name, **options)
    failures = {(plan.roots[-1], branches): failure for branches in of}
    store.add(
        Measurement(row | failures.get((row["axis_root"], row["axis_branches"]), {}))
        for row in plan.rows()
    )
    return id_


def test_failing_release_is_one_event(store: Store) -> None:
    campaign_id = add_failing(store, "nightly")
    (check,) = watch_campaigns(store, NOW)
    assert (check.state, check.slower) == (CheckState.FAILED, 0)
    message, reason, *_ = check.text.splitlines()
    assert message == "core dumped"
    assert "no usable execution on side B (failed: payload" in reason
    (event,) = find_regressions(list_checks(store), NOW)
    assert event.title == ("Regression: ttree-read fails with ROOT 6.40.00, and not with 6.38.00")
    assert event.text.endswith(f"Campaign {campaign_id}.")
    assert assess_release(store, NEW).summary == "ttree-read against 6.38.00, failed"
    add_failing(store, "next night")
    (check,) = watch_campaigns(store, NOW)
    assert check.state == CheckState.KNOWN
    add_failing(store, "other work", branches=(0.5,))
    assert [check.state for check in watch_campaigns(store, NOW + HOUR)] == [CheckState.FAILED]
    assert len(list_announced(store)) == 2, "the first one fails still"
    check_campaign(store, NOW + HOUR, "other variants", 0.0, hosts=1, jobs=2, branches=(0.5,))
    assert assess_release(store, NEW).level is AlarmLevel.CRITICAL
    # It runs again, though nothing is decided.
    check_campaign(store, NOW + 2 * HOUR, "two jobs", 0.0, hosts=1, jobs=2, branches=(1.0, 0.5))
    assert assess_release(store, NEW).summary == "compared in 1 test, nothing decided"


def test_slower_and_failing_variants_are_two_events(store: Store) -> None:
    add_mixed = partial(add_failing, store, of=("0.5",), branches=(1.0, 0.5), effect=0.08)
    add_mixed("nightly")
    assert {check.state for check in watch_campaigns(store, NOW)} == {"failed", "suspected"}
    (event,) = find_regressions(list_checks(store), NOW)
    assert event.title == "Regression: ttree-read fails with ROOT 6.40.00, and not with 6.38.00"
    rerun(store, NOW + 2, "again", 0.08)
    assert {check.state for check in list_announced(store)} == {"failed", "confirmed"}
    add_mixed("next night", seed=3)
    assert [check.state for check in watch_campaigns(store, NOW + 3)] == [CheckState.KNOWN]


@pytest.mark.parametrize(
    ("branches", "state", "level"),
    [((1.0, 0.5), "refuted", AlarmLevel.OK), ((0.5,), "known", AlarmLevel.CRITICAL)],
)
def test_rerun_ends_the_earlier_regressions_that_it_answers(
    store: Store, branches: tuple[float, ...], state: str, level: AlarmLevel
) -> None:
    check_campaign(store, NOW, "nightly", 0.08)
    rerun(store, NOW + 1, "again", 0.08)
    check_campaign(store, NOW + 2, "both", 0.08, seed=9, branches=(1.0, 0.5))
    (check,) = rerun(store, NOW + 3, "quick", 0.0, seed=7, branches=branches)
    assert (check.state, assess_release(store, NEW).level) == (state, level)


def test_release_that_cannot_be_set_up_fails_until_it_runs(store: Store) -> None:
    for _ in range(2):
        record_failed_release(store, "ttree-read", (OLD, NEW), "pip could not install", NOW - 1)
    (event,) = find_regressions(list_checks(store), NOW)
    assert event.title == "Regression: ttree-read fails with ROOT 6.40.00"
    assert "pip could not install" in event.text
    assert event.evidence == "/releases/6.40.00"
    assert assess_release(store, NEW).level is AlarmLevel.CRITICAL
    assert [check.text for check in list_announced(store)] == ["pip could not install"]
    (check,) = check_campaign(store, NOW, "nightly", 0.08)
    assert check.state == CheckState.SUSPECTED, "another trouble is no known one"
    assert list_announced(store) == []


def test_newest_release_is_compared_with_the_patch_before(store: Store) -> None:
    add_failing(store, "release", roots=(OLD, NEW, "6.40.02"))
    checks = {(check.a, check.b): check.state for check in watch_campaigns(store, NOW)}
    assert checks == {
        (OLD, NEW): CheckState.CLEAR,
        (OLD, "6.40.02"): CheckState.FAILED,
        (NEW, "6.40.02"): CheckState.FAILED,
    }


def test_regression_of_every_night_is_one_event(store: Store) -> None:
    check_campaign(store, NOW, "nightly", 0.08)
    add_campaign(store, "second night", 0.08, seed=5)
    (repeated,) = watch_campaigns(store, NOW + 1)
    assert repeated.state == CheckState.KNOWN
    rerun(store, NOW + 2, "again", 0.08)
    check_campaign(store, NOW + 3, "third night", 0.08, seed=6)
    check_campaign(store, NOW + 4, "other variants", 0.0, seed=9, branches=(0.5,))
    assert assess_release(store, NEW).level is AlarmLevel.CRITICAL
    # Another variant is another event, which a rerun of the known one alone does not confirm.
    check_campaign(store, NOW + 5, "both", 0.08, seed=9, branches=(1.0, 0.5))
    (other,) = rerun(store, NOW + 6, "known", 0.08)
    assert other.state == CheckState.SUSPECTED
    rerun(store, NOW + 7, "other", 0.08, branches=(0.5,))
    rows = build_check_table(list_checks(store)).rows
    assert [row["check"] for row in rows] == ["confirmed", "confirmed"]
    assert len(list(find_regressions(list_checks(store), NOW))) == 2
    # Repaired, and broken again.
    check_campaign(store, NOW + 8, "fourth night", 0.0, seed=7, branches=(1.0, 0.5))
    assert assess_release(store, NEW).level is AlarmLevel.OK
    (check,) = check_campaign(store, NOW + 9, "fifth night", 0.08, seed=8)
    assert check.state == CheckState.SUSPECTED


def test_rerun_without_result_is_repeated(store: Store) -> None:
    check_campaign(store, NOW, "nightly", 0.08)
    (suspected,) = requested_reruns(store)
    running = add_campaign(store, "running", 0.08, state="running")
    record_rerun(store, suspected, running, NOW)
    assert watch_campaigns(store, NOW) == []
    with Store.open(str(store.url)) as other, other.writing_connection() as connection:
        connection.exec_driver_sql("DELETE FROM measurement")
        connection.exec_driver_sql("UPDATE job SET state = 'lost'")
    (check,) = watch_campaigns(store, NOW)
    assert check.state == CheckState.SUSPECTED
    (suspected,) = requested_reruns(store)
    assert suspected.reruns == 1


FAST, SLOW = "XRootD v5.8.1", "XRootD v5.8.9"


def add_read(
    store: Store,
    name: str,
    hour: int,
    version: str,
    *,
    column: str = "server_version",
    effect: float = 0.0,
    jobs: int = 8,
) -> str:
    """Add a campaign of one release through a server of this version; return its identity."""
    plan = SimulatedCampaign(
        name=name, seed=hour, roots=(OLD,), jobs=jobs, loop_s=10 * math.exp(effect)
    )
    id_ = hashlib.sha256(name.encode()).hexdigest()[:12]
    campaign = make_campaign_row(id_, name=name, created_us=NOW + hour * HOUR)
    store.add_campaign(campaign, [make_job_row(f"{name}-job", campaign_id=id_, state="done")])
    store.add([Measurement(row | {column: version}) for row in plan.rows()])
    return id_


@pytest.mark.parametrize(
    ("column", "suffix"), [("server_version", ""), ("origin_version", " origin")]
)
def test_slow_version_of_a_server_is_one_event_of_its_site(
    store: Store, column: str, suffix: str
) -> None:
    add_slow = partial(add_read, column=column, effect=0.7)
    before = add_read(store, "before", 1, FAST, column=column)
    watch_campaigns(store, NOW + HOUR)
    # A single job has no verdict, so the next campaign is compared.
    add_slow(store, "probe", 2, SLOW, jobs=1)
    after = add_slow(store, "after", 3, SLOW)
    checks = watch_campaigns(store, NOW + 4 * HOUR)
    (check,) = [check for check in checks if check.server]
    server = f"T2_A:t2_a-door{suffix}"
    assert (check.campaign_id, check.server, check.a, check.b) == (after, server, FAST, SLOW)
    (suspected,) = requested_reruns(store)
    assert describe_step(suspected) == (
        f"ttree-read is slower with {SLOW} at {server} than with {FAST}"
    )
    campaign_id = add_slow(store, "again", 5, SLOW)
    assert record_rerun(store, suspected, campaign_id, NOW + 6 * HOUR)
    (check,) = watch_campaigns(store, NOW + 6 * HOUR)
    assert check.state == CheckState.CONFIRMED
    assert check.effect == pytest.approx(0.7, abs=0.2)
    (event,) = find_regressions(list_checks(store), NOW)
    assert event.title.startswith(f"Regression: {describe_step(suspected)} by up to +")
    assert (event.subject_kind, event.subject) == (AlarmKind.SITE, "T2_A")
    assert re.search(r": \+[\d.]+ % \(\+[\d.]+ … \+[\d.]+ %\) at T2_A", event.text)
    verdicts = store.verdicts(check.comparison_id)
    assert {row.evidence.campaigns for row in verdicts} == {(before, campaign_id)}
    assert [regression for regression, _ in list_regressions(store)] == [check]
    # The next campaign is as slow, and the one before it has read from this version already.
    add_slow(store, "next day", 24, SLOW)
    checks = watch_campaigns(store, NOW + 25 * HOUR)
    assert [check for check in checks if check.server] == []


def test_quick_version_of_a_server_is_checked_once(store: Store) -> None:
    for hour, version in enumerate((FAST, SLOW, SLOW, FAST), 1):
        add_read(store, f"campaign {hour}", hour, version)
    checks = [check for check in watch_campaigns(store, NOW + 5 * HOUR) if check.server]
    assert [(check.a, check.b, check.state) for check in checks] == [
        (FAST, SLOW, CheckState.CLEAR),
        (SLOW, FAST, CheckState.CLEAR),
    ]


@pytest.mark.parametrize(
    ("verdicts", "reruns", "state"),
    [
        (("same", "slower"), 1, CheckState.CONFIRMED),
        (("same", "faster"), MAX_RERUNS, CheckState.REFUTED),
        (("same", "not enough"), MAX_RERUNS - 1, CheckState.SUSPECTED),
        ((), MAX_RERUNS - 1, CheckState.SUSPECTED),
        (("unclear",), MAX_RERUNS, CheckState.UNDECIDED),
    ],
)
def test_rerun_decides(
    store: Store, verdicts: tuple[str, ...], reruns: int, state: CheckState
) -> None:
    (check,) = check_campaign(store, NOW, "nightly", 0.08)
    row = store.verdicts(check.comparison_id)[0]
    rows = [replace(row, site=f"{n}", verdict=word) for n, word in enumerate(verdicts)]
    other = replace(row, site="other", verdict="slower")
    assert judge_rerun({*map(identify_work, rows)}, [*rows, other], reruns) is state


def compare(store: Store, campaign: str, *options: str) -> str:
    """Compare and store, as the command does; return the identity of the comparison."""
    command = ["--database", str(store.url), "compare", OLD, NEW, "--campaign", campaign, *options]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code in (0, 1), done.output
    return list_latest_comparisons(store, 1)[0].first_verdict.comparison_id


def test_stored_comparisons_count_without_a_check(store: Store) -> None:
    assert compare(store, add_campaign(store, "on one host", 0.0, hosts=1))
    old, new = assess_releases(store)
    assert (new.level, new.summary) == (AlarmLevel.OK, "not slower in 1 compared test")
    assert assess_release(store, NEW) == new
    assert (old.level, old.summary) == (
        AlarmLevel.UNKNOWN,
        "only the base of comparisons, of 6.40.00",
    )
    assert assess_release(store, OLD) == old
    slower = compare(store, add_campaign(store, "slower", 0.08, hosts=1))
    state = assess_release(store, NEW)
    assert (state.level, state.evidence) == (AlarmLevel.WARNING, f"/compare/{slower}")
    assert state.details[0].endswith(
        "suspected by stored comparison: 2 of 2 verdicts slower, up to +8.1 %"
    )
    assert requested_reruns(store) == []
    # A newer one that decides nothing leaves it in place.
    compare(store, add_campaign(store, "two jobs", 0.0, hosts=1, jobs=2))
    assert assess_release(store, NEW) == state
    # The check of the finished campaign replaces it.
    watch_campaigns(store, NOW)
    assert {check.campaign_id for check in list_checks(store)} != {""}


def test_newer_comparison_counts_against_a_clear_check_only(store: Store) -> None:
    check_campaign(store, NOW, "nightly", 0.0)
    slower = compare(store, add_campaign(store, "not finished", 0.08, state="running", seed=2))
    for state in (assess_release(store, NEW), assess_releases(store)[1]):
        assert (state.level, state.evidence) == (AlarmLevel.WARNING, f"/compare/{slower}")
    # A rerun decides whatever people compare.
    check_campaign(store, NOW + 1, "second night", 0.08, seed=3)
    (refuted,) = rerun(store, NOW + 2, "again", 0.0, seed=4)
    assert not [*find_regressions(list_checks(store), NOW), *requested_reruns(store)]
    compare(store, add_campaign(store, "still slower", 0.08, state="running", seed=5))
    state = assess_release(store, NEW)
    assert state.level is AlarmLevel.OK
    assert f"refuted by rerun {refuted.rerun_id}: 0 of " in state.details[0]


def test_comparison_of_some_results_does_not_count(store: Store) -> None:
    campaign = add_campaign(store, "slower", 0.08)
    slower = compare(store, campaign)
    compare(store, campaign, "--delta", "0.5")
    compare(store, campaign, "--where", "site=T2_A")
    state = assess_release(store, NEW)
    assert (state.level, state.evidence) == (AlarmLevel.WARNING, f"/compare/{slower}")
    assert state.details[-1].startswith("Counted: finished campaigns, ")


def test_faster_release_is_no_regression_of_the_older_one(store: Store) -> None:
    add_campaign(store, "faster", -0.08)
    command = ["--database", str(store.url), "compare", NEW, OLD]
    assert "slower" in CliRunner().invoke(cli, command).output
    state = assess_release(store, OLD)
    assert (state.level, state.summary) == (
        AlarmLevel.UNKNOWN,
        "not compared with an older release",
    )
