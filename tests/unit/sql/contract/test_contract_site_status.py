"""Runs, states, downtimes and overrides of sites in every database."""

from __future__ import annotations

import json
from dataclasses import replace

from measurement_factory import make_campaign_row
from status_story import (
    HOUR_US,
    STORY_US,
    fill_story,
    make_downtime,
    make_override,
    make_run,
)

from treehammer.analysis.status.failure_explanation import explain_period
from treehammer.analysis.status.site_status import update_states
from treehammer.analysis.status.status_rules import parse_status_rules
from treehammer.sql.core.watch_rows import RuleSetRow
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.overview_queries import STORAGE_SITE
from treehammer.sql.watch import state_history
from treehammer.sql.watch.state_history import list_run_outcomes
from treehammer.sql.write.store import Store

RULES = parse_status_rules(
    """
[rules.exclusion]
kind = "tests"
window = "6h"
failed_runs = 3
failing_tests = 2
recovery_runs = 2
hold = "2h"
forget = "1d"
""",
    "rules.toml",
)


def test_runs_are_listed_by_site_test_and_storage(store: Store) -> None:
    fill_story(store)
    runs = list_run_outcomes(store, STORY_US + HOUR_US - 1, STORY_US + 4 * HOUR_US)
    assert [(run.job_id, run.site, run.storage_site, run.test, dict(run.outcomes)) for run in runs][
        :3
    ] == [
        ("h", "A", "", "ttree-read", {"held": 1}),
        ("j1load", "A", "A", "load", {"good": 1}),
        ("j1read", "A", "A", "read", {"good": 1}),
    ]
    [remote] = [run for run in runs if run.job_id == "remote"]
    assert (remote.site, remote.storage_site, dict(remote.outcomes)) == ("B", "A", {"open": 1})
    assert len(runs) == 10


def test_runs_are_split_by_door(store: Store) -> None:
    store.add(
        [
            make_run("both", 1, good=True, door="root"),
            make_run("both", 1.2, good=False, door="https", round_=2),
            make_run("remote", 2, good=False, site="B", storage="A", door="https"),
        ]
    )
    runs = list_run_outcomes(store, STORY_US, STORY_US + 4 * HOUR_US)
    assert [
        (run.job_id, run.outcomes, {door: part.outcomes for door, part in run.by_door.items()})
        for run in runs
    ] == [
        ("both", {"open": 1, "good": 1}, {"A:https": {"open": 1}, "A:root": {"good": 1}}),
        ("remote", {"open": 1}, {"A:https": {"open": 1}}),
    ]
    first = runs[0].by_door["A:root"]
    assert (first.ended_us, runs[0].ended_us) == (
        STORY_US + HOUR_US,
        STORY_US + round(1.2 * HOUR_US),
    )


def test_doors_are_listed_only_on_request(store: Store) -> None:
    row = replace(make_override(0, 12), site="A:https", subject_kind="door")
    state_history.add_override(store, row)
    update_states(store, STORY_US + HOUR_US, RULES)
    lists = (
        state_history.list_state_changes,
        state_history.list_current_states,
        state_history.list_standing_states,
    )
    for list_rows in lists:
        assert not list_rows(store)
        assert [change.site for change in list_rows(store, doors=True)] == ["A:https"]
    assert [len(state_history.list_current_states(store, site=s, doors=True)) for s in "Aa"] == [
        1,
        0,
    ]


def test_failures_are_explained(store: Store) -> None:
    fill_story(store)
    store.add_campaign(
        make_campaign_row("campaign", created_us=STORY_US, test_name="read", commit_id="a"), []
    )
    store.add_campaign(
        make_campaign_row("before", created_us=STORY_US - HOUR_US, test_name="read", commit_id="b"),
        [],
    )
    store.add(make_run(f"b{n}", n / 8, good=True, site="B") for n in range(1, 40))
    day = explain_period(store, "A", Period.of_day(STORY_US + HOUR_US))
    part = explain_period(store, "A", Period(STORY_US, STORY_US + 5 * HOUR_US))
    storage = explain_period(store, "A", Period.of_day(STORY_US), by=STORAGE_SITE)
    begin = ", since 2026-03-01 02:59 UTC"
    assert (day and day.sentence, part and part.sentence, storage and storage.sentence) == (
        f"8 of 12 failed here, 1 of 40 elsewhere: the site{begin}",
        f"6 of 10 failed here, 1 of 40 elsewhere: the site{begin}",
        f"9 of 13 failed here in 9 jobs, 0 of 39 elsewhere: too few to tell{begin}",
    )


def test_states_are_kept_with_evidence(store: Store) -> None:
    fill_story(store)
    assert update_states(store, STORY_US + 7 * HOUR_US, RULES).recorded
    changes = state_history.list_state_changes(store, site="A")
    told = [(row.subject_kind, row.state, (row.since_us - STORY_US) / HOUR_US) for row in changes]
    assert sorted(told) == [
        ("site", "critical", 5),
        ("site", "ok", 2),
        ("storage_site", "critical", 5),
        ("storage_site", "ok", 2),
        ("storage_site", "warning", 4),
    ]
    last = state_history.list_current_states(store, site="A")[0]
    assert state_history.find_change(store, last.id) == last
    assert json.loads(last.evidence)["failures"] == {"open": 6}
    assert not update_states(store, STORY_US + 7 * HOUR_US + 1, RULES).changes


def test_downtimes_and_overrides_correct_states(store: Store) -> None:
    fill_story(store)
    update_states(store, STORY_US + 7 * HOUR_US, RULES)
    result = state_history.replace_downtimes(store, "goc", [make_downtime(2.5, 9)], STORY_US)
    assert (result.new, result.withdrawn) == (1, 0)
    update = update_states(store, STORY_US + 8 * HOUR_US, RULES)
    assert {row.state for row in update.superseded} == {"critical", "warning"}
    assert {row.state for row in state_history.list_current_states(store)} == {"downtime"}
    moved = replace(make_downtime(2.5, 9), ends_us=STORY_US + 10 * HOUR_US)
    again = state_history.replace_downtimes(store, "goc", [moved], STORY_US)
    assert (again.new, again.changed, again.unchanged) == (0, 1, 0)
    assert state_history.list_downtimes(store) == [moved]
    state_history.add_override(store, make_override(8.5, 12, "ok"))
    update_states(store, STORY_US + 9 * HOUR_US, RULES)
    assert {row.cause for row in state_history.list_current_states(store)} == {"override"}
    state_history.end_overrides(store, "A", now_us=STORY_US + round(9.5 * HOUR_US), who="bob")
    [kept] = state_history.list_overrides(store)
    assert (kept.state, kept.ended_by) == ("ok", "bob")


def test_of_two_evaluations_at_once_one_is_recorded(store: Store) -> None:
    first, second = (RuleSetRow("v", "{}", 0, now_us) for now_us in (5, 6))
    nothing = {"superseded": (), "changes": ()}
    assert state_history.record_evaluation(store, before=None, rule_set=first, **nothing)
    assert not state_history.record_evaluation(store, before=None, rule_set=second, **nothing)
    assert state_history.record_evaluation(store, before=first, rule_set=second, **nothing)
    assert state_history.find_latest_rule_set(store) == second
