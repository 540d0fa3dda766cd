"""A kind of status rule that is declared outside the package."""

from __future__ import annotations

from typing import Literal

from treehammer.analysis.status.rule_judgements import (
    ReplayWindow,
    RuleMemory,
    RunWindow,
    StateJudgement,
    judge_runs,
    replay_rule,
)
from treehammer.analysis.status.status_rules import WindowRule
from treehammer.analysis.status.subject_state import SiteState


class TideRule(WindowRule):
    """Warning when nothing ran at high water."""

    kind: Literal["tide"]


@judge_runs.register
def _judge_tide(rule: TideRule, window: RunWindow, _before: RuleMemory) -> StateJudgement:
    return StateJudgement(SiteState.WARNING, f"{len(window.runs)} runs in {rule.window}")


def test_registered_rule_is_replayed() -> None:
    rule = TideRule(kind="tide", window="24h")
    start = RuleMemory(SiteState.OK)
    unused = StateJudgement(SiteState.OK, "")
    (change,) = replay_rule(rule, [], start, ReplayWindow(0, 100, 10), lambda _: unused)
    assert (change.time_us, change.state, change.reason) == (
        10,
        SiteState.WARNING,
        "0 runs in 24h",
    )
