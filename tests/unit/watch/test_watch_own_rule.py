"""A kind of rule from another package."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from treehammer.analysis.status.site_uses import SiteState
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.watch.states.rule_judgements import (
    ReplayWindow,
    RuleMemory,
    RunWindow,
    StateJudgement,
    judge_runs,
    replay_rule,
)
from treehammer.watch.states.status_rules import (
    RULES_FILE,
    StatusRule,
    WindowRule,
    parse_status_rules,
)


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
