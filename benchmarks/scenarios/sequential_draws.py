"""The sequential plan against fixed ones, on recorded A/A launches: false verdicts, power, launches.

Each trial draws recorded launches without repetition, swaps their sides at random and adds a slowdown
to side B.  Their CPU and wall times are judged together, as ``submit --wait`` and ``compare`` do.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from benchmarks.harness.figures import (
    CLAIMED_RATE,
    SEED,
    RatioFigure,
    print_table,
    share_figure,
    write_results,
)
from benchmarks.scenarios.paired_launches import PairedLaunch, load_equal_launches
from treehammer.analysis.statistics.estimates import (
    add_shared_scatter,
    adjust_benjamini_hochberg,
    estimate_mean,
    judge_family,
)
from treehammer.analysis.statistics.verdict import (
    SEQUENTIAL_JOBS,
    SEQUENTIAL_LAUNCHES,
    Verdict,
    is_open,
    plan_looks,
    share_error_rate,
)

Ratios = npt.NDArray[np.float64]

#: Trials of each case.
TRIAL_COUNT = 1000
#: Slowdowns of side B, relative, and limits of no effect (ln).
SLOWDOWNS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05)
DELTAS = (0.02, 0.005, 0.001)
#: Name of a plan -> its looks; a plan with one look is a fixed one.
UNTIL_DECIDED = "until decided, at most 40"
PLANS = {
    UNTIL_DECIDED: plan_looks(40).looks,
    "fixed, 4": (4,),
    "fixed, 12": (12,),
    "fixed, 40": (40,),
}


@dataclass(frozen=True)
class PlanResult:
    """Verdicts on CPU time of one plan: numbers of trials, and the mean of its launches."""

    label: str
    plan: str
    slowdown: float
    delta: float
    trials: int
    false: int
    slower: int
    same: int
    different: int
    undecided: int
    mean_launches: float

    def to_figures(self) -> Iterator[RatioFigure]:
        """Yield the false verdicts, and the mean of the launches."""
        title = (
            f"{self.label}, {self.plan}, planted {100 * self.slowdown:g} %, "
            f"delta {100 * self.delta:g} %"
        )
        yield share_figure(f"{title}: false", self.false, self.trials, CLAIMED_RATE)
        yield RatioFigure(f"{title}: mean launches", self.mean_launches, pairs=self.trials)


def measure(_: argparse.Namespace) -> list[RatioFigure]:
    """Judge all plans on the launches of a quiet and of a busy machine."""
    results = [
        result
        for label, launches in load_equal_launches().items()
        for result in judge_plans(launches, label)
    ]
    rows = [asdict(result) for result in results]
    write_results("sequential", rows)
    print_table(rows)
    return [
        figure
        for result in results
        if result.plan == UNTIL_DECIDED
        for figure in result.to_figures()
    ]


def judge_plans(launches: Sequence[PairedLaunch], label: str) -> Iterator[PlanResult]:
    """Judge each plan for each slowdown and limit on the same draws."""
    ratios = np.array([(launch.cpu_d, launch.wall_d) for launch in launches])
    for slowdown, delta, (name, looks) in product(SLOWDOWNS, DELTAS, PLANS.items()):
        dice = np.random.default_rng([SEED, len(launches), round(1e4 * slowdown)])
        ends = [
            run_plan(draw_launches(ratios, slowdown, dice), looks, delta)
            for _ in range(TRIAL_COUNT)
        ]
        counts = Counter(verdict for verdict, _ in ends)
        effect = math.log1p(slowdown)
        yield PlanResult(
            label=label,
            plan=name,
            slowdown=slowdown,
            delta=delta,
            trials=TRIAL_COUNT,
            false=sum(is_false(verdict, effect, delta) for verdict, _ in ends),
            slower=counts[Verdict.SLOWER],
            same=counts[Verdict.SAME],
            different=counts[Verdict.DIFFERENT],
            undecided=counts[Verdict.UNDECIDED],
            mean_launches=round(float(np.mean([count for _, count in ends])), 2),
        )


def draw_launches(ratios: Ratios, slowdown: float, dice: np.random.Generator) -> Ratios:
    """Draw launches in random order, with random sides and a slowdown of B; rows of CPU and wall."""
    order = dice.permutation(len(ratios))
    signs = dice.choice((-1.0, 1.0), len(ratios))
    draws: Ratios = ratios[order] * signs[:, None] + math.log1p(slowdown)
    return draws


def run_plan(ratios: Ratios, looks: Sequence[int], delta: float) -> tuple[Verdict, int]:
    """Look until CPU time is decided; return its verdict and the number of launches."""
    verdict, look = Verdict.UNDECIDED, 0
    for look in looks:
        estimates = [estimate_mean(column.tolist()) for column in ratios[:look].T]
        # A campaign of so many launches ends within an hour.
        family = [add_shared_scatter(estimate, 1) for estimate in estimates if estimate is not None]
        share = share_error_rate(looks, look * SEQUENTIAL_JOBS // SEQUENTIAL_LAUNCHES)
        judged = judge_family(family, delta, adjust_benjamini_hochberg, share)
        verdict = judged[0].verdict
        low, high = family[0].interval(judged[0].level)
        if not is_open(verdict, low, high, delta):
            break
    return verdict, look


def is_false(verdict: Verdict, effect: float, delta: float) -> bool:
    """Return whether a claim about an effect does not hold."""
    return {
        Verdict.SLOWER: effect <= delta,
        Verdict.FASTER: True,
        Verdict.SAME: effect > delta,
        Verdict.DIFFERENT: not effect,
    }.get(verdict, False)
