"""Use of sites by their states, and the rules that decide on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from status_story import HOUR_US, STORY_US, make_downtime, make_override, make_run

from treehammer.analysis.status.site_status import (
    SiteUses,
    Usability,
    find_probe_time,
    list_uses,
    refresh_uses,
    update_states,
)
from treehammer.analysis.status.status_rules import load_shipped_rules
from treehammer.sql.watch import state_history
from treehammer.sql.write.store import Store

RULES = load_shipped_rules()
STEP_US = RULES.step_us


def evaluate(store: Store, hours: float) -> SiteUses:
    """Evaluate the states by the shipped rules."""
    update_states(store, STORY_US + round(hours * HOUR_US), RULES)
    return list_uses(store)


def add_runs(store: Store, good: Sequence[bool], test: str = "read", site: str = "A") -> None:
    """Add runs of a test at a site, one every ten minutes."""
    store.add(
        make_run(f"{site}{test}{number}", number / 6, good=is_good, site=site, test=test)
        for number, is_good in enumerate(good)
    )


def test_only_test_of_a_site_excludes_it_and_its_probes_bring_it_back(store: Store) -> None:
    add_runs(store, [True, False, False, False])
    use = evaluate(store, 1).find("site", "A")
    assert use is not None
    assert (use.usability, use.cause, use.who) == (Usability.PROBE_ONLY, "exclusion", "exclusion")
    assert use.reason == "the last 3 runs of 1 test failed: read"
    assert (use.since_us, use.until_us) == (STORY_US + HOUR_US // 2, None)
    add_runs(store, [True, False, False, False, True, True])
    assert evaluate(store, 2).summarize("A") is Usability.USABLE


def test_failing_half_the_time_excludes_a_site(store: Store) -> None:
    add_runs(store, [False, True, False] * 4)
    use = evaluate(store, 3).find("site", "A")
    assert use is not None
    assert use.usability is Usability.PROBE_ONLY
    assert use.reason.startswith("more than 50 % of the runs of 1 test failed")


def test_failing_half_the_time_is_judged_by_enough_runs(store: Store) -> None:
    add_runs(store, [False, True, False] * 3)
    assert evaluate(store, 3).summarize("A") is Usability.USABLE


def test_one_failing_test_of_two_excludes_nothing(store: Store) -> None:
    add_runs(store, [False] * 6)
    add_runs(store, [True] * 6, "load")
    assert evaluate(store, 2).summarize("A") is Usability.USABLE


def test_failures_of_the_test_itself_count_against_no_site(store: Store) -> None:
    store.add(
        make_run(f"j{number}", number / 6, good=False, failure="payload") for number in range(6)
    )
    assert evaluate(store, 2).summarize("A") is Usability.USABLE


def test_machine_of_a_developer_is_excluded_by_people_only(store: Store) -> None:
    add_runs(store, [False] * 6, site="local")
    use = evaluate(store, 2).find("site", "local")
    assert use is not None
    assert (use.state, use.usability) == ("critical", Usability.USABLE)
    override = replace(make_override(1, 9), site="local")
    state_history.add_override(store, override)
    assert evaluate(store, 3).summarize("local") is Usability.EXCLUDED


def test_override_and_downtime_exclude_until_their_end(store: Store) -> None:
    state_history.replace_downtimes(store, "goc", [make_downtime(1, 3)], STORY_US)
    use = evaluate(store, 2).find("storage_site", "A")  # which has no result yet
    assert use is not None
    assert (use.usability, use.who, use.until_us) == (
        Usability.EXCLUDED, "goc", STORY_US + 3 * HOUR_US,
    )  # fmt: skip
    assert use.describe() == (
        "excluded since 2026-03-01 01:00 until 2026-03-01 03:00 UTC, downtime by goc: new disks"
    )
    described = evaluate(store, 2.1).describe_restrictions("A")
    assert described == f"jobs and storage {use.describe()}"
    assert evaluate(store, 4).summarize("A") is Usability.USABLE
    state_history.add_override(store, make_override(5, 9))
    use = evaluate(store, 6).find("site", "A")
    assert use is not None
    assert (use.usability, use.who, use.until_us) == (
        Usability.EXCLUDED, "ada", STORY_US + 9 * HOUR_US,
    )  # fmt: skip
    state_history.add_override(store, make_override(7, 9, "warning"))
    assert evaluate(store, 8).summarize("A") is Usability.USABLE


def test_central_event_excludes_nobody(store: Store) -> None:
    for site in ("A", "B", "C"):
        add_runs(store, [True] * 4 + [False] * 6, site=site)
    uses = evaluate(store, 2)
    assert {uses.summarize(site) for site in "ABC"} == {Usability.USABLE}


def test_probes_follow_the_state(store: Store) -> None:
    add_runs(store, [False] * 4)
    restrictions = evaluate(store, 1).restrictions("A")
    every_us, since_us = RULES.probes.every_us, restrictions[0].since_us
    assert every_us == 900_000_000
    assert find_probe_time(restrictions, every_us, since_us + every_us - 1) is None
    for periods in (1, 2, 9):
        due_us = since_us + periods * every_us
        assert find_probe_time(restrictions, every_us, due_us + 5) == due_us
    assert find_probe_time((), every_us, since_us + every_us) is None
    state_history.add_override(store, make_override(1, 9))
    excluded = evaluate(store, 2).restrictions("A")
    assert find_probe_time(excluded, every_us, since_us + 20 * every_us) is None


@pytest.mark.backends("sqlite")
def test_nothing_is_evaluated_where_nobody_ever_did(store: Store) -> None:
    add_runs(store, [False] * 4)
    now_us = STORY_US + HOUR_US
    assert refresh_uses(store, RULES, now_us) == SiteUses()
    assert state_history.find_latest_rule_set(store) is None
    assert refresh_uses(store, RULES, now_us, always=True).restrictions("A")
    assert not refresh_uses(store, RULES, now_us + STEP_US - 1).find("site", "B")


def test_states_are_evaluated_again_after_a_step(store: Store) -> None:
    update_states(store, STORY_US, RULES)
    add_runs(store, [False] * 4)
    assert not refresh_uses(store, RULES, STORY_US + STEP_US - 1).restrictions("A")
    assert refresh_uses(store, RULES, STORY_US + HOUR_US).restrictions("A")


def test_downtime_is_evaluated_without_any_evaluation_before(store: Store) -> None:
    state_history.replace_downtimes(store, "goc", [make_downtime(1, 3)], STORY_US)
    assert refresh_uses(store, RULES, STORY_US + 2 * HOUR_US).summarize("A") is Usability.EXCLUDED


def add_door_runs(store: Store, hours: Sequence[float], doors: dict[str, bool]) -> None:
    """Add runs of a test through doors of site A, which work or fail."""
    store.add(
        make_run(f"{door}{number}", number + later, good=good, door=door)
        for number in hours
        for later, (door, good) in zip((0, 0.01), doors.items(), strict=False)
    )


def test_bad_door_is_critical_beside_a_good_one(store: Store) -> None:
    add_door_runs(store, [0.1, 0.2, 0.3, 0.4], {"https": False, "root": True})
    uses = evaluate(store, 1)
    assert {
        label: use.usability for (kind, label), use in uses.by_subject.items() if kind == "door"
    } == {"A:https": Usability.PROBE_ONLY, "A:root": Usability.USABLE}
    assert (uses.summarize("A"), uses.describe_door("A", "root")) == (Usability.USABLE, "")
    assert "critical by exclusion: the last 3 runs" in uses.describe_door("A", "https")
    assert [use.site for use in uses.restricted_doors("A")] == ["A:https"]
    add_door_runs(store, [1.1, 1.2], {"https": True})
    assert not evaluate(store, 2).restricted_doors("A")


def test_only_door_of_a_storage_has_no_state(store: Store) -> None:
    add_door_runs(store, [0.1, 0.2, 0.3], {"https": False})
    assert {kind for kind, _ in evaluate(store, 1).by_subject} == {"site", "storage_site"}


def test_door_is_forgotten_without_runs_and_the_others_keep_their_history(store: Store) -> None:
    add_door_runs(store, [0.1, 0.2, 0.3], {"https": False, "root": True})
    assert evaluate(store, 1).restricted_doors("A")
    for day in range(8):
        add_door_runs(store, [24 * day + hour for hour in (2, 4, 6)], {"root": True})
        assert not evaluate(store, 24 * day + 7).restricted_doors("A")
    rows = state_history.list_state_changes(store, doors=True, superseded=True)
    assert not [row for row in rows if row.superseded_us]


def test_downtime_of_a_storage_excuses_its_doors(store: Store) -> None:
    state_history.replace_downtimes(store, "goc", [make_downtime(0, 1)], STORY_US)
    add_door_runs(store, [0.1, 0.2, 0.3], {"https": False, "root": True})
    uses = evaluate(store, 0.8)
    assert not uses.restricted_doors("A")
    assert uses.summarize("A") is Usability.EXCLUDED


def test_override_holds_for_one_door(store: Store) -> None:
    state_history.add_override(
        store, replace(make_override(0, 5), site="A:https", subject_kind="door")
    )
    uses = evaluate(store, 1)
    assert "excluded since" in uses.describe_door("A", "https")
    assert (uses.describe_door("A", "root"), uses.summarize("A")) == ("", Usability.USABLE)
