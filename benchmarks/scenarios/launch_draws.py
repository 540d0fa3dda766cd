"""False verdicts and power on recorded A/A launches, of ``compare`` and of the sequential plan.

Each trial draws recorded launches without repetition, swaps their sides at random and adds a slowdown
to side B.  Their CPU and wall times are judged together, as ``submit --wait`` and ``compare`` do.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from benchmarks.harness.figures import (
    SEED,
    RatioFigure,
    print_table,
    read_rows,
    share_figure,
    write_results,
)
from benchmarks.harness.trials import CLAIMED_RATE, WRONG_VERDICTS, count_trials, make_sample
from benchmarks.scenarios.paired_launches import (
    AXIS,
    BASE,
    CAMPAIGN_JOBS,
    CPU,
    OTHER,
    RECORDED_FILE,
    WALL,
    PairedLaunch,
)
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.statistics.estimates import (
    adjust_benjamini_hochberg,
    estimate_mean,
    judge_family,
)
from treehammer.analysis.statistics.sample import Sample
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    HOST_SCOPE,
    SITE_SCOPE,
    SITES_SCOPE,
    SequentialPlan,
    Verdict,
    is_open,
)

Ratios = npt.NDArray[np.float64]

#: Trials of each case.
TRIAL_COUNT = 1000
#: Launches of a job, and the variants of a campaign, which share one correction.
JOB_LAUNCHES, VARIANTS = 2, 2
SERIES_LAUNCHES = CAMPAIGN_JOBS * JOB_LAUNCHES


def load_equal_launches() -> dict[str, list[PairedLaunch]]:
    """Load the recorded A/A launches by label."""
    launches: dict[str, list[PairedLaunch]] = defaultdict(list)
    for launch in read_rows(RECORDED_FILE, PairedLaunch):
        if launch.is_equal:
            launches[launch.label].append(launch)
    return dict(sorted(launches.items()))


def draw_launches(ratios: Ratios, slowdown: float, dice: np.random.Generator) -> Ratios:
    """Draw launches in random order, with random sides and a slowdown of B; rows of CPU and wall."""
    return swap_sides(ratios[dice.permutation(len(ratios))], slowdown, dice)


def swap_sides(ratios: Ratios, slowdown: float, dice: np.random.Generator) -> Ratios:
    """Swap the sides of launches at random, and slow side B down."""
    signs = dice.choice((-1.0, 1.0), len(ratios))
    swapped: Ratios = ratios * signs[:, None] + math.log1p(slowdown)
    return swapped


def _to_ratios(launches: Sequence[PairedLaunch]) -> Ratios:
    return np.array([(launch.cpu_d, launch.wall_d) for launch in launches])


# Verdicts of compare, by scope


@dataclass(frozen=True)
class CampaignDraw:
    """Campaigns whose rows of ``scope`` are judged; sites and hosts are only names.

    Attributes:
        scope: of the rows.
        sites: of a campaign.
        hosts: of a site.
        delta: limit up to which effects count as the same.
        slowdown: of side B, relative; 0 for A/A campaigns.
    """

    scope: str
    sites: int
    hosts: int
    delta: float = DEFAULT_DELTA
    slowdown: float = 0.0


#: The scatter is so far below the default limit that nearly all rows are the same.  The smaller
#: limit tests the claims "different", "slower" and "faster" alone.
FALSE_VERDICT_DRAWS = tuple(
    CampaignDraw(*shape, delta)
    for shape in ((HOST_SCOPE, 1, 1), (SITE_SCOPE, 1, 3), (SITES_SCOPE, 6, 3))
    for delta in (DEFAULT_DELTA, 0.0001)
)
#: Half of each slowdown counts as the same.
POWER_DRAWS = tuple(
    CampaignDraw(HOST_SCOPE, 1, 1, slowdown / 2, slowdown) for slowdown in (0.02, 0.01, 0.005)
)


def measure_verdicts(_: argparse.Namespace) -> list[RatioFigure]:
    """Count false verdicts where nothing differs, and planted slowdowns that are found."""
    with ProcessPoolExecutor() as pool:
        return [
            figure
            for label, launches in load_equal_launches().items()
            for figure in (
                *_false_verdict_figures(launches, label, pool),
                *_power_figures(launches, label, pool),
            )
        ]


def _false_verdict_figures(
    launches: Sequence[PairedLaunch], label: str, pool: Executor
) -> Iterator[RatioFigure]:
    for draw in FALSE_VERDICT_DRAWS:
        tally = count_trials(pool, partial(tally_campaign, launches, draw), TRIAL_COUNT)
        title = f"{label}, {draw.scope}, delta {100 * draw.delta:g} %"
        wrong = tally["wrong comparisons"]
        yield share_figure(
            f"comparisons with a false verdict, {title}", wrong, TRIAL_COUNT, CLAIMED_RATE
        )
        same = sum(tally[f"{metric} {Verdict.SAME}"] for metric in (CPU, WALL))
        yield share_figure(f"rows called same, {title}", same, tally["rows"])


def _power_figures(
    launches: Sequence[PairedLaunch], label: str, pool: Executor
) -> Iterator[RatioFigure]:
    for draw in POWER_DRAWS:
        tally = count_trials(pool, partial(tally_campaign, launches, draw), TRIAL_COUNT)
        for metric in (CPU, WALL):
            title = f"planted {100 * draw.slowdown:g} %, {metric}, {label}"
            slower = tally[f"{metric} {Verdict.SLOWER}"]
            slower_or_different = slower + tally[f"{metric} {Verdict.DIFFERENT}"]
            yield share_figure(f"{title}: found", slower_or_different, tally["rows"] // 2)
            yield share_figure(f"{title}: slower", slower, tally["rows"] // 2)


def tally_campaign(
    launches: Sequence[PairedLaunch], draw: CampaignDraw, trial: int
) -> Counter[str]:
    """Draw and compare one campaign; count its verdicts of the scope by metric."""
    tally = Counter[str]()
    for metric, verdicts in judge_campaign(launches, draw, trial).items():
        tally.update(f"{metric} {verdict}" for verdict in verdicts)
        tally["rows"] += len(verdicts)
        tally["wrong comparisons"] |= any(verdict in WRONG_VERDICTS for verdict in verdicts)
    return tally


def judge_campaign(
    launches: Sequence[PairedLaunch], draw: CampaignDraw, trial: int
) -> Mapping[str, Sequence[str]]:
    """Draw and compare one campaign; return the verdicts of its rows of the scope by metric."""
    dice = np.random.default_rng([SEED, len(launches), draw.sites, draw.hosts, trial])
    samples = [
        sample
        for site, variant in product(range(draw.sites), range(VARIANTS))
        for sample in _draw_series(launches, draw, dice, site, variant)
    ]
    query = ComparisonQuery(AXIS, BASE, OTHER, delta=draw.delta)
    verdicts: dict[str, list[str]] = defaultdict(list)
    for row in compare_samples(samples, query, now_us=0).verdicts:
        if row.scope == draw.scope:
            verdicts[row.metric].append(row.verdict)
    return verdicts


def _draw_series(
    launches: Sequence[PairedLaunch],
    draw: CampaignDraw,
    dice: np.random.Generator,
    site: int,
    variant: int,
) -> Iterator[Sample]:
    """Draw the launches of a variant at a site; build both sides of each."""
    places = dice.choice(len(launches), SERIES_LAUNCHES, replace=False)
    chosen = [launches[place] for place in places]
    ratios = swap_sides(_to_ratios(chosen), draw.slowdown, dice)
    for number, (launch, (cpu, wall)) in enumerate(zip(chosen, ratios.tolist(), strict=True)):
        job, round_ = divmod(number, JOB_LAUNCHES)
        for side, times, launch_ratios in (
            (BASE, {CPU: launch.cpu_a, WALL: launch.wall_a}, {}),
            (OTHER, {CPU: launch.cpu_b, WALL: launch.wall_b}, {CPU: cpu, WALL: wall}),
        ):
            yield make_sample(
                f"{site}-{variant}-{job}",
                f"{round_}-{side}",
                {AXIS: side, "variant": variant},
                site=f"site{site}",
                host=f"site{site}-host{job % draw.hosts}",
                round=round_ + 1,
                loop_cpu_s=launch.loop_s,
                metrics=times,
                launch_ratios=launch_ratios,
            )


# The sequential plan against fixed plans

#: Slowdowns of side B, relative, and limits of no effect (ln).
SLOWDOWNS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05)
DELTAS = (0.02, 0.005, 0.001)
#: Name of a plan -> its looks; a plan with one look is a fixed one.
UNTIL_DECIDED = "until decided, at most 24"
PLANS = {
    UNTIL_DECIDED: SequentialPlan.up_to(24).looks,
    "fixed, 4": (4,),
    "fixed, 12": (12,),
    "fixed, 24": (24,),
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


def measure_plans(_: argparse.Namespace) -> list[RatioFigure]:
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
    ratios = _to_ratios(launches)
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


def run_plan(ratios: Ratios, looks: Sequence[int], delta: float) -> tuple[Verdict, int]:
    """Look until CPU time is decided; return its verdict and the number of launches."""
    verdict, look = Verdict.UNDECIDED, 0
    for look in looks:
        estimates = [estimate_mean(column.tolist()) for column in ratios[:look].T]
        family = [estimate for estimate in estimates if estimate is not None]
        judged = judge_family(family, delta, adjust_benjamini_hochberg, len(looks))
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
