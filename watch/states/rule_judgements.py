"""Judgement of a site's runs by one rule: in one time window, replayed over time, and of single days.

A replay depends on nothing but the runs, the rule and the state at its beginning: runs that arrive
late lead to the states that they would have led to in time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from itertools import islice
from typing import Any

from treehammer.analysis.status.failure_explanation import BAD_STATES
from treehammer.analysis.status.site_uses import SiteState
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.outcome import Outcome, sum_outcomes
from treehammer.sql.core.evidence import RuleMemoryEvidence, StateEvidence
from treehammer.sql.core.subjects import DOOR, STORAGE_SITE
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.text_formatting import format_share, pluralize
from treehammer.watch.states.status_rules import (
    ExclusionRule,
    ShareRule,
    StatusRule,
    StatusRules,
    WindowRule,
    duration_us,
)
from treehammer.watch.store.state_history import RunOutcome

#: Campaigns, jobs and measurements that evidence names, the newest first.
MAX_NAMED = 20


@dataclass(frozen=True)
class ChargedRun:
    """A run as it counts for one site or storage: numbers of good and bad measurements."""

    run: RunOutcome
    good: int
    bad: int

    @property
    def succeeded(self) -> bool:
        """Whether nothing in it was bad."""
        return not self.bad


@dataclass(frozen=True)
class RuleMemory:
    """Previous judgement by a rule, on which hysteresis depends.

    Attributes:
        state: the state.
        tests: tests that have to succeed for a recovery.
        recovered_us: time of the last recovery; None without any.
    """

    state: SiteState = SiteState.UNKNOWN
    tests: frozenset[str] = frozenset()
    recovered_us: int | None = None

    @classmethod
    def from_change(cls, row: StatusChangeRow) -> RuleMemory:
        """Return the memory after a recorded change."""
        memory = row.evidence.memory or RuleMemoryEvidence()
        return cls(SiteState(row.state), frozenset(memory.tests), memory.recovered_us)


#: Collects counts, and identities of results, behind a judgement.
BuildEvidence = Callable[[], StateEvidence]


@dataclass(frozen=True)
class StateJudgement:
    """State by a rule at a time, with a sentence.

    ``build_evidence`` is called where the state changes, which most judgements do not.
    """

    state: SiteState
    reason: str
    build_evidence: BuildEvidence = StateEvidence
    memory: RuleMemory = RuleMemory()


def charge_run(
    run: RunOutcome, kind: str, rules: StatusRules, *, has_storage: bool = True
) -> ChargedRun | None:
    """Count a run for its site, its storage or a door; None if it says nothing about it.

    Failures of the storage count against a job's site only if it read its own storage, and that was
    not in a downtime (``has_storage``). A storage
    and its door are charged for failures of the storage alone. Failures of the test count against
    none of them.
    """
    charged = set(run.outcomes) - set(rules.test_failures)
    if kind in (STORAGE_SITE, DOOR):
        charged &= {Outcome.GOOD.value, *rules.storage_failures}
    elif run.storage_site not in ("", run.site) or not has_storage:
        charged -= set(rules.storage_failures)
    sums = sum_outcomes({label: run.outcomes[label] for label in charged})
    good, bad = sums[Outcome.GOOD], sums[Outcome.FAILED] + sums[Outcome.IMPLAUSIBLE]
    return ChargedRun(run, good, bad) if good or bad else None


@dataclass(frozen=True)
class RunWindow:
    """Runs that a rule judges at a time, by their end.

    Attributes:
        now_us: the time.
        runs: the runs of the rule's window.
        remembered: all runs that the rule remembers.
    """

    now_us: int
    runs: Sequence[ChargedRun]
    remembered: Sequence[ChargedRun]


@singledispatch
def judge_runs(rule: WindowRule, _window: RunWindow, _before: RuleMemory) -> StateJudgement:
    """Judge runs by a rule; each kind of rule registers its function."""
    raise NotImplementedError(f"no judgement for {type(rule).__name__}")


@judge_runs.register
def _judge_share(rule: ShareRule, window: RunWindow, before: RuleMemory) -> StateJudgement:
    """Judge the measurements of a window by the ratio of bad to good ones."""
    runs = window.runs
    good, bad = sum(run.good for run in runs), sum(run.bad for run in runs)

    def build_evidence() -> StateEvidence:
        return StateEvidence(counts={"good": good, "bad": bad}, **_name_evidence(runs))

    total = good + bad
    if total < rule.min_measurements:
        reason = f"{pluralize(total, 'measurement')} in {rule.window}, too few to judge"
        return StateJudgement(SiteState.UNKNOWN, reason, build_evidence)
    state = rule.classify(good, bad, was_bad=before.state in BAD_STATES)
    reason = f"{bad:,} of {pluralize(total, 'measurement')} in {rule.window} were bad"
    return StateJudgement(state, reason, build_evidence, RuleMemory(state))


@judge_runs.register
def _judge_tests(rule: ExclusionRule, window: RunWindow, before: RuleMemory) -> StateJudgement:
    """Judge the last runs of each test in a window."""
    runs, now_us = window.runs, window.now_us
    by_test: defaultdict[str, list[ChargedRun]] = defaultdict(list)
    for run in runs:
        by_test[run.run.test].append(run)
    failing = {
        test: bad for test, test_runs in by_test.items() if (bad := _list_failures(rule, test_runs))
    }
    if before.state is SiteState.CRITICAL:
        return _judge_recovery(rule, by_test, before, now_us, window.remembered)
    if failing and len(failing) >= min(rule.failing_tests, len(by_test)):
        return _judge_exclusion(rule, failing, by_test, before, now_us)
    build_evidence = partial(_build_test_evidence, by_test, runs)
    memory = replace(before, tests=frozenset())
    if failing:
        reason = _describe_failing(rule, failing)
        return _judge(SiteState.WARNING, reason, build_evidence, memory)
    if all(len(test_runs) < rule.failed_runs for test_runs in by_test.values()):
        reason = f"fewer than {rule.failed_runs} runs of any test in {rule.window}"
        return _judge(SiteState.UNKNOWN, reason, build_evidence, memory)
    reason = f"{pluralize(len(by_test), 'test')} ran, none failed {rule.failed_runs} times in a row"
    return _judge(SiteState.OK, reason, build_evidence, memory)


def _list_failures(rule: ExclusionRule, runs: Sequence[ChargedRun]) -> Sequence[ChargedRun]:
    """Return the failed runs for which a test is failing; nothing if it is not."""
    if _have_same_end(runs, rule.failed_runs, succeeded=False):
        return runs[-rule.failed_runs :]
    failed = [run for run in runs if not run.succeeded]
    is_failing = len(runs) >= rule.min_runs and len(failed) > rule.failed_share * len(runs)
    return failed if is_failing else ()


def _describe_failing(rule: ExclusionRule, failing: Mapping[str, Sequence[ChargedRun]]) -> str:
    runs = f"the last {rule.failed_runs} runs"
    if any(len(failed) != rule.failed_runs for failed in failing.values()):
        runs = f"more than {format_share(rule.failed_share)} of the runs"
    tests = pluralize(len(failing), "test")
    return f"{runs} of {tests} failed: {', '.join(sorted(failing))}"


def _judge(
    state: SiteState, reason: str, build_evidence: BuildEvidence, memory: RuleMemory
) -> StateJudgement:
    return StateJudgement(state, reason, build_evidence, replace(memory, state=state))


def _judge_exclusion(
    rule: ExclusionRule,
    failing: Mapping[str, Sequence[ChargedRun]],
    by_test: Mapping[str, Sequence[ChargedRun]],
    before: RuleMemory,
    now_us: int,
) -> StateJudgement:
    runs = [run for failed in failing.values() for run in failed]
    build_evidence = partial(_build_test_evidence, by_test, runs)
    reason = _describe_failing(rule, failing)
    hold_until_us = (before.recovered_us or 0) + duration_us(rule.hold)
    if before.recovered_us is not None and now_us < hold_until_us:
        reason += f"; no second exclusion within {rule.hold} of the last recovery"
        return _judge(SiteState.WARNING, reason, build_evidence, before)
    memory = replace(before, tests=frozenset(by_test))
    return _judge(SiteState.CRITICAL, reason, build_evidence, memory)


def _judge_recovery(
    rule: ExclusionRule,
    by_test: Mapping[str, Sequence[ChargedRun]],
    before: RuleMemory,
    now_us: int,
    recent: Sequence[ChargedRun],
) -> StateJudgement:
    """Judge an excluded site: it recovers when every test succeeded several times in a row."""
    tests = (before.tests | set(by_test)) & {run.run.test for run in recent}
    recovered = {
        test
        for test in tests
        if _have_same_end(by_test.get(test, ()), rule.recovery_runs, succeeded=True)
    }
    runs = [run for test_runs in by_test.values() for run in test_runs]
    build_evidence = partial(_build_test_evidence, by_test, runs)
    if tests and recovered == tests:
        of_all = f"all {len(tests)} tests" if len(tests) > 1 else "the only test"
        reason = f"the last {rule.recovery_runs} runs of {of_all} succeeded"
        return _judge(SiteState.OK, reason, build_evidence, RuleMemory(recovered_us=now_us))
    if not recent:
        reason = f"no run in {rule.forget}"
        return _judge(SiteState.UNKNOWN, reason, build_evidence, RuleMemory())
    missing = ", ".join(sorted(tests - recovered))
    reason = f"waits for {rule.recovery_runs} successes in a row of {missing}"
    return _judge(
        SiteState.CRITICAL, reason, build_evidence, replace(before, tests=before.tests | tests)
    )


def _have_same_end(runs: Sequence[ChargedRun], count: int, *, succeeded: bool) -> bool:
    """Return whether the last ``count`` runs all succeeded or all failed; False for fewer runs."""
    last = runs[-count:]
    return len(last) == count and all(run.succeeded == succeeded for run in last)


def _build_test_evidence(
    by_test: Mapping[str, Sequence[ChargedRun]], runs: Sequence[ChargedRun]
) -> StateEvidence:
    counts: dict[str, dict[str, int]] = {}
    for test, of_test in sorted(by_test.items()):
        succeeded = sum(run.succeeded for run in of_test)
        counts[test] = {"succeeded": succeeded, "failed": len(of_test) - succeeded}
    return StateEvidence(tests=counts, **_name_evidence(runs))


def _name_evidence(runs: Sequence[ChargedRun]) -> dict[str, Any]:
    """Name the runs behind a judgement: those with failures if there are any, the newest first."""
    newest = sorted(runs, key=lambda run: run.run.ended_us, reverse=True)
    failed = [run for run in newest if not run.succeeded]
    evidence = [run.run for run in failed or newest]
    failures = sum((Counter(run.run.outcomes) for run in runs), Counter())
    del failures[Outcome.GOOD.value]
    return {
        "campaigns": _list_newest(run.campaign_id for run in evidence),
        "jobs": _list_newest(run.job_id for run in evidence),
        "measurements": _list_newest(filter(None, (run.measurement_id for run in evidence))),
        "failures": dict(failures.most_common()) or None,
    }


def _list_newest(identities: Iterable[str]) -> tuple[str, ...]:
    return tuple(islice(dict.fromkeys(identities), MAX_NAMED))


@dataclass(frozen=True)
class ReplayWindow:
    """Time that is replayed, in steps: after ``from_us`` up to ``to_us``."""

    from_us: int
    to_us: int
    step_us: int

    def ceil_step(self, time_us: int) -> int:
        """Return the first step at or after a time."""
        return -(-time_us // self.step_us) * self.step_us


#: Judgement of a day without load tests.
_NO_LOAD_TEST = StateJudgement(SiteState.UNKNOWN, "no load test on the day before")


def replay_rule(
    rule: StatusRule,
    runs: Sequence[ChargedRun],
    latest: StatusChangeRow,
    window: ReplayWindow,
    days: Mapping[int, StateJudgement],
) -> list[StatusChangeRow]:
    """Replay a rule; return the changes of the state, in order.

    Args:
        rule: the rule.
        runs: charged runs by their end, from one time window of the rule before the replay.
        latest: the latest change by the rule before the replay.
        window: the time to replay.
        days: for the rule on operations, judgements by day (UTC, YYYYMMDD).
    """
    if isinstance(rule, WindowRule):
        judgements = _judge_steps(rule, runs, RuleMemory.from_change(latest), window)
    else:
        numbers = {
            day: number
            for day in range(window.from_us // DAY_US, window.to_us // DAY_US)
            if (number := epoch_day_to_number(day)) is not None
        }
        # Each day is judged when it has ended.
        judgements = (
            ((day + 1) * DAY_US, days.get(number, _NO_LOAD_TEST)) for day, number in numbers.items()
        )
    changes: list[StatusChangeRow] = []
    state = latest.state
    for time_us, judgement in judgements:
        if judgement.state != state:
            memory = judgement.memory
            stored_memory = RuleMemoryEvidence(tuple(sorted(memory.tests)), memory.recovered_us)
            changes.append(
                replace(
                    latest,
                    id="",
                    state=judgement.state.value,
                    previous=state,
                    since_us=time_us,
                    decided_us=window.to_us,
                    rule_version=rule.version,
                    reason=judgement.reason,
                    evidence=replace(judgement.build_evidence(), memory=stored_memory),
                )
            )
        state = judgement.state.value
    return changes


def _judge_steps(
    rule: WindowRule, runs: Sequence[ChargedRun], memory: RuleMemory, window: ReplayWindow
) -> Iterator[tuple[int, StateJudgement]]:
    """Yield the judgement at each step at which runs enter or leave the window."""
    length = duration_us(rule.window)
    ends = [run.run.ended_us for run in runs]
    times = {window.ceil_step(end + shift) for end in ends for shift in (0, length, rule.memory_us)}
    times.add(window.ceil_step(window.from_us + 1))
    pending = [time for time in times if window.from_us < time <= window.to_us]
    heapq.heapify(pending)
    last_us = -1
    while pending:
        time_us = heapq.heappop(pending)
        if time_us == last_us:
            continue
        last_us = time_us
        last = bisect_right(ends, time_us)
        first = bisect_right(ends, time_us - length)
        earliest = bisect_right(ends, time_us - rule.memory_us)
        run_window = RunWindow(time_us, runs[first:last], runs[earliest:last])
        judgement = judge_runs(rule, run_window, memory)
        memory = judgement.memory
        if memory.recovered_us is not None:
            end = window.ceil_step(memory.recovered_us + rule.hold_us)
            if time_us < end <= window.to_us:
                heapq.heappush(pending, end)
        yield time_us, judgement
