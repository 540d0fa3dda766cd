"""Explanations of the changes of states."""

from __future__ import annotations

import pytest
from failure_story import explain, run, run_everywhere
from measurement_factory import HOUR_US, STORY_US, make_run

from treehammer.collectors.record import node_needs
from treehammer.sql.write.store import Store
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import load_shipped_rules
from treehammer.watch.store.state_history import list_current_states


@pytest.mark.parametrize(("failure", "state"), [("software-setup", "critical"), ("payload", "ok")])
def test_site_whose_nodes_lack_something_turns_critical(
    store: Store, failure: str, state: str
) -> None:
    lack = node_needs.describe_lack(node_needs.HEADERS, "<new> is not found", "A")
    values = {"failure_kind": node_needs.HEADERS, "failure_message": lack}
    for test in ("read", "load"):
        store.add(run_everywhere(16, test_name=test))
        store.add(run(True, 12 + n / 4, failure, test_name=test, **values) for n in range(16))
    update_states(store, STORY_US + 17 * HOUR_US, load_shipped_rules())
    (row,) = [row for row in list_current_states(store, site="A") if row.subject_kind == "site"]
    assert row.state == state
    if state == "critical":
        assert explain(store).action.startswith("Cause: node: headers. Install gcc-c++")


def test_a_change_after_a_good_day_is_explained_by_what_has_begun(store: Store) -> None:
    for site in "ABCDE":
        store.add(
            make_run(
                f"{site}{number}{test}",
                number / 4,
                good=number < 57 if site == "A" else number % 15 != 3,
                site=site,
                test=test,
            )
            for number in range(60)
            for test in ("read", "load")
        )
    update_states(store, STORY_US + 15 * HOUR_US, load_shipped_rules())
    (row, *_) = list_current_states(store, site="A")
    explanation = row.evidence.explanation
    assert row.state == "critical"
    assert explanation is not None
    assert explanation.culprit == "the site"
    assert explanation.sentence.startswith("6 of ")
