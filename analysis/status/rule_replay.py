"""States of one site by one rule over time, replayed from its runs.

A replay depends on nothing but the runs, the rule and the state at its beginning: runs that arrive
late lead to the states that they would have led to in time.
"""

from __future__ import annotations

import heapq
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treehammer.analysis.status.rule_judgements import (
    ChargedRun,
    RuleMemory,
    StateJudgement,
    judge_share,
    judge_speed,
    judge_tests,
)
from treehammer.analysis.status.site_state import SiteState
from treehammer.analysis.status.status_rules import (
    ExclusionRule,
    OperationsRule,
    ShareRule,
    SpeedRule,
    StatusRule,
    duration_us,
)
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.sql.core.watch_rows import StatusChangeRow

#: Judges a storage's operations of a UTC day (YYYYMMDD).
JudgeDay = Callable[[int], StateJudgement]


#: Key of the evidence that holds the memory of a rule.
_MEMORY = "memory"


@dataclass(frozen=True)
class RuleChange:
    """Change of a site's state by one rule."""

    time_us: int
    state: SiteState
    previous: SiteState
    reason: str
    evidence: Mapping[str, Any]
    memory: RuleMemory

    @classmethod
    def from_row(cls, row: StatusChangeRow) -> RuleChange:
        """Return a recorded change."""
        evidence = row.load_evidence()
        values = evidence.pop(_MEMORY, {})
        state, previous = SiteState(row.state), SiteState(row.previous)
        tests = frozenset(values.get("tests", ()))
        memory = RuleMemory(state, tests, values.get("recovered_us"))
        return cls(row.since_us, state, previous, row.reason, evidence, memory)

    def dump_evidence(self) -> str:
        """Return evidence and memory as JSON."""
        memory = {"tests": sorted(self.memory.tests), "recovered_us": self.memory.recovered_us}
        return json.dumps({**self.evidence, _MEMORY: memory})


@dataclass(frozen=True)
class ReplayWindow:
    """Time that is replayed, in steps: after ``from_us`` up to ``to_us``."""

    from_us: int
    to_us: int
    step_us: int

    def ceil_step(self, time_us: int) -> int:
        """Return the first step at or after a time."""
        return -(-time_us // self.step_us) * self.step_us


def replay_rule(
    rule: StatusRule,
    runs: Sequence[ChargedRun],
    start: RuleMemory,
    window: ReplayWindow,
    judge_day: JudgeDay,
) -> list[RuleChange]:
    """Replay a rule; return the changes of the state, in order.

    Args:
        rule: the rule.
        runs: charged runs by their end, from one time window of the rule before the replay.
        start: memory of the rule at the beginning.
        window: the time to replay.
        judge_day: for the rule on operations.
    """
    if isinstance(rule, OperationsRule):
        return _replay_days(start, window, judge_day)
    return _replay_runs(rule, runs, start, window)


def _replay_days(start: RuleMemory, window: ReplayWindow, judge_day: JudgeDay) -> list[RuleChange]:
    """Judge each day when it has ended."""
    changes: list[RuleChange] = []
    memory = start
    for day in range(window.from_us // DAY_US, window.to_us // DAY_US):
        number = epoch_day_to_number(day)
        if number is not None:
            memory = _note_change(changes, memory, judge_day(number), (day + 1) * DAY_US)
    return changes


def _replay_runs(
    rule: ShareRule | ExclusionRule | SpeedRule,
    runs: Sequence[ChargedRun],
    start: RuleMemory,
    window: ReplayWindow,
) -> list[RuleChange]:
    length = duration_us(rule.window)
    ends = [run.run.ended_us for run in runs]
    pending = _list_times(ends, (0, length, rule.memory_us), window)
    changes: list[RuleChange] = []
    memory, seen = start, -1
    while pending:
        time_us = heapq.heappop(pending)
        if time_us == seen:
            continue
        seen = time_us
        last = bisect_right(ends, time_us)
        first = bisect_right(ends, time_us - length)
        inside, earliest = runs[first:last], bisect_right(ends, time_us - rule.memory_us)
        if isinstance(rule, ShareRule):
            judgement = judge_share(rule, inside, memory)
        elif isinstance(rule, SpeedRule):
            judgement = judge_speed(rule, inside, memory, runs[earliest:first])
        else:
            judgement = judge_tests(rule, inside, memory, time_us, runs[earliest:last])
            if judgement.memory.recovered_us is not None:
                end = window.ceil_step(judgement.memory.recovered_us + duration_us(rule.hold))
                if time_us < end <= window.to_us:
                    heapq.heappush(pending, end)
        memory = _note_change(changes, memory, judgement, time_us)
    return changes


def _list_times(ends: Sequence[int], shifts: Sequence[int], window: ReplayWindow) -> list[int]:
    """List the steps at which runs enter or leave a time window, as a heap."""
    times = {window.ceil_step(end + shift) for end in ends for shift in shifts}
    times.add(window.ceil_step(window.from_us + 1))
    pending = [time for time in times if window.from_us < time <= window.to_us]
    heapq.heapify(pending)
    return pending


def _note_change(
    changes: list[RuleChange], before: RuleMemory, judgement: StateJudgement, time_us: int
) -> RuleMemory:
    if judgement.state is not before.state:
        changes.append(
            RuleChange(
                time_us,
                judgement.state,
                before.state,
                judgement.reason,
                judgement.collect_evidence(),
                judgement.memory,
            )
        )
    return judgement.memory
