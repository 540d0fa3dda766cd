"""The search for the build that changed a metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from treehammer.analysis.bisection import (
    Conclusion,
    CounterSearch,
    JobEffect,
    SearchOutcome,
    StepPosterior,
    StepSearch,
    expect_information,
)

NOISE = 0.007


def run_search(
    level: Callable[[int], float], builds: int = 64, *, seed: int = 1, limit: int = 80
) -> tuple[Conclusion, StepSearch]:
    """Search with simulated jobs; ``level`` is the true effect of a build."""
    noise = np.random.default_rng(seed)
    search = StepSearch(builds)
    while not search.conclude().is_decided and len(search.jobs) < limit:
        build = search.choose_next()
        search = search.add_effects(build, [level(build) + NOISE * noise.normal()])
    return search.conclude(), search


@pytest.mark.parametrize("place", [1, 2, 31, 62, 63])
def test_step_is_found_anywhere(place: int) -> None:
    found, search = run_search(lambda build: 0.05 if build >= place else 0.0)
    assert found.outcome is SearchOutcome.STEP
    (step,) = found.steps
    assert (step.first, step.last) == (place, place)
    assert step.certainty >= 0.95
    assert step.effect == pytest.approx(0.05, abs=0.02)
    assert step.low is not None
    assert step.high is not None
    assert step.low < 0.05 < step.high
    assert len(search.jobs) <= 12
    assert found.candidates == (place, place)


def test_improvement_is_a_step() -> None:
    found, _ = run_search(lambda build: -0.1 if build >= 20 else 0.0)
    assert found.outcome is SearchOutcome.STEP
    assert found.steps[0].last == 20
    assert found.steps[0].effect == pytest.approx(-0.1, abs=0.02)


def test_large_step_is_found() -> None:
    found, search = run_search(lambda build: 1.0 if build >= 20 else 0.0)
    assert found.outcome is SearchOutcome.STEP
    assert found.steps[0].last == 20
    assert len(search.jobs) <= 10


def test_equal_builds_are_unchanged() -> None:
    found, _ = run_search(lambda _build: 0.0)
    assert found.outcome is SearchOutcome.UNCHANGED
    assert found.steps == ()
    assert found.last_level is not None
    mean, low, high = found.last_level
    assert low < 0 < high
    assert abs(mean) < 0.01


def test_two_steps_are_reported() -> None:
    found, _ = run_search(lambda build: 0.0 if build < 10 else 0.15 if build < 40 else 0.05)
    assert found.outcome is SearchOutcome.SEVERAL_STEPS
    assert [step.last for step in found.steps] == [10, 40]
    sizes = [step.effect for step in found.steps]
    assert sizes == [pytest.approx(0.15, abs=0.03), pytest.approx(-0.10, abs=0.03)]


def test_disturbed_job_makes_no_steps() -> None:
    search = StepSearch(6)
    for build, effect in ((5, 0.010), (3, -0.005), (2, 0.004), (1, 1.38)):
        search = search.add_effects(build, [effect])
    assert search.conclude().outcome is SearchOutcome.UNDECIDED, "the high build was measured once"
    assert search.choose_next() == 1
    search = search.add_effects(1, [0.002])
    assert search.conclude().outcome is not SearchOutcome.SEVERAL_STEPS


def test_search_without_enough_jobs_is_undecided() -> None:
    found, search = run_search(lambda build: 0.02 if build >= 30 else 0.0, limit=5)
    assert found.outcome is SearchOutcome.UNDECIDED
    assert len(search.jobs) == 5
    assert found.certainty < 0.95
    first, last = found.candidates
    assert first <= 30 <= last
    assert found.shares is not None
    assert sum(found.shares) == pytest.approx(1)


def test_skipped_builds_widen_the_result() -> None:
    search = StepSearch(16, skipped=frozenset({7, 8}))
    noise = np.random.default_rng(3)
    while not search.conclude().is_decided:
        build = search.choose_next()
        assert build not in (7, 8)
        search = search.add_effects(build, [(0.1 if build >= 8 else 0.0) + NOISE * noise.normal()])
    conclusion = search.conclude()
    assert conclusion.outcome is SearchOutcome.STEP
    assert (conclusion.steps[0].first, conclusion.steps[0].last) == (7, 9)


def test_stated_certainty_holds() -> None:
    """Fewer than 18 right ones of 20 searches that state 95 % would be a chance of 8 %."""
    right = 0
    for seed in range(20):
        place = 1 + 7 * seed % 15
        found, _ = run_search(lambda b, p=place: 0.03 if b >= p else 0.0, 16, seed=seed)  # type: ignore[misc]
        right += found.outcome is SearchOutcome.STEP and found.steps[0].last == place
    assert right >= 18


def test_first_job_is_of_the_last_build() -> None:
    assert StepSearch(64).choose_next() == 63


def test_information_is_highest_inside_the_range() -> None:
    posterior = StepPosterior(9, [JobEffect(8, 0.1), JobEffect(8, 0.1), JobEffect(4, 0.0)])
    gains = {build: expect_information(posterior, build) for build in range(1, 9)}
    assert max(gains, key=gains.__getitem__) == 6
    assert gains[6] == pytest.approx(math.log(2), rel=0.4)
    assert all(gain >= 0 for gain in gains.values())


def count_probes(values: list[float], skipped: tuple[int, ...] = ()) -> tuple[Conclusion, int]:
    search, probes = CounterSearch(len(values)), 0
    while not search.conclude().is_decided:
        build = search.choose_next()
        if build in skipped:
            search = replace(search, skipped=search.skipped | {build})
            continue
        probes += 1
        search = search.add_value(build, values[build], values[0])
    return search.conclude(), probes


def test_counter_needs_one_job_a_halving() -> None:
    found, probes = count_probes([100.0] * 37 + [110.0] * 27)
    assert found.outcome is SearchOutcome.STEP
    assert found.certainty == 1
    assert (found.steps[0].first, found.steps[0].last) == (37, 37)
    assert found.steps[0].effect == pytest.approx(math.log(1.1))
    assert probes <= 7


def test_equal_counters_need_one_job() -> None:
    found, probes = count_probes([5.0] * 64)
    assert (found.outcome, probes) == (SearchOutcome.UNCHANGED, 1)


def test_counter_with_a_third_value_has_several_steps() -> None:
    found, _ = count_probes([1.0] * 5 + [2.0] * 3 + [3.0] * 8)
    assert found.outcome is SearchOutcome.SEVERAL_STEPS
    assert found.steps[0].last == 5


def test_counter_of_zero_has_no_ratio() -> None:
    found, _ = count_probes([0.0, 0.0, 4.0, 4.0])
    assert found.outcome is SearchOutcome.STEP
    assert (found.steps[0].last, found.steps[0].effect) == (2, None)


def test_skipped_builds_widen_the_result_of_a_counter() -> None:
    found, _ = count_probes([1.0] * 8 + [2.0] * 8, skipped=(7, 8))
    assert found.outcome is SearchOutcome.STEP
    assert (found.steps[0].first, found.steps[0].last) == (7, 9)
