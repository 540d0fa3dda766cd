"""Trials of the sequential plan, and the bias between the sides of A/A launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from benchmark_modules import import_benchmarks

from treehammer.analysis.statistics.verdict import Verdict


@pytest.fixture(scope="module")
def modules() -> Iterator[Callable[[str], ModuleType]]:
    with import_benchmarks() as named:
        yield named


def test_plan_ends_at_the_look_that_decides(modules: Callable[[str], ModuleType]) -> None:
    benchmark = modules("analysis.sequential_resampling")
    ratios = np.random.default_rng(1).normal(0, 0.003, (50, 2))
    ends = {
        slowdown: benchmark.run_plan(
            benchmark.draw_launches(ratios, slowdown, np.random.default_rng(2)), (6, 12, 24), 0.02
        )
        for slowdown in (0.0, 0.05, math.expm1(0.02))
    }
    assert [*ends.values()] == [(Verdict.SAME, 6), (Verdict.SLOWER, 6), (Verdict.DIFFERENT, 6)]


@pytest.mark.parametrize(
    ("verdict", "effect", "expected"),
    [
        (Verdict.SLOWER, 0.03, False),
        (Verdict.SLOWER, 0.02, True),
        (Verdict.SAME, 0.03, True),
        (Verdict.DIFFERENT, 0.01, False),
        (Verdict.DIFFERENT, 0.0, True),
        (Verdict.UNDECIDED, 0.0, False),
    ],
)
def test_false_claims(
    modules: Callable[[str], ModuleType], verdict: Verdict, effect: float, expected: bool
) -> None:
    benchmark = modules("analysis.sequential_resampling")
    assert benchmark.is_false(verdict, effect, 0.02) is expected


def test_order_of_sides_does_not_enter_their_bias(modules: Callable[[str], ModuleType]) -> None:
    """Three of four launches begin with A, and the side that begins is slower by 0.002."""
    launches = [
        SimpleNamespace(order=order, cpu_d=0.0005 + shift + noise, wall_d=noise)
        for order, shift, count in (("AB", -0.001, 30), ("BA", 0.001, 10))
        for noise in [1e-4, -1e-4] * (count // 2)
    ]
    bias, order, *_ = modules("analysis.side_bias").build_figures("quiet", launches)
    assert bias.value == pytest.approx(0.0005)
    assert order.value == pytest.approx(-0.001)
    assert bias.low < 0.0005 < bias.high
    assert not bias.within_bound
