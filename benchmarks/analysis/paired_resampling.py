"""False verdicts and power of ``compare`` on A/A launches of paired mode, by scope.

Campaigns are drawn from the recorded launches, or made of consecutive ones, and passed to
``compare``; sites and hosts are only names.  For the power, a slowdown is added to each drawn ratio.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import chain, product

import numpy as np

from benchmarks.analysis import paired_campaigns
from benchmarks.analysis.paired_recording import (
    AXIS,
    BASE,
    BLOCK_SHARES,
    CAMPAIGN_JOBS,
    CPU,
    WALL,
    CampaignResult,
    PairedLaunch,
)
from benchmarks.analysis.verdict_shares import (
    FALSE_VERDICT_RATE,
    WRONG_VERDICTS,
    VerdictShare,
)
from benchmarks.harness.ratio_figures import SEED
from benchmarks.harness.result_tables import read_rows
from benchmarks.harness.simulated_samples import make_sample
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.comparison.wording.verdict_text import METRIC_TITLES
from treehammer.analysis.samples.sample import Sample
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    HOST_SCOPE,
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
)

#: Metric -> verdicts of its rows.
VerdictsByMetric = dict[str, list[str]]

#: Launches of a job, and the variants of a campaign, which share one correction.
JOB_LAUNCHES, VARIANTS = 2, 2
#: Recorded launches that resampling needs: a series holds no launch twice.
MIN_RECORDED = 2 * JOB_LAUNCHES * CAMPAIGN_JOBS
#: Campaigns drawn for each scope.
TRIAL_COUNT = 1000
#: The side that is compared with the base.
OTHER = next(iter(BLOCK_SHARES))


@dataclass(frozen=True)
class ScopeShape:
    """Campaigns whose rows of ``scope`` are counted: so many sites with so many hosts each."""

    scope: str
    sites: int
    hosts: int


@dataclass(frozen=True)
class JudgedDraw:
    """A way to draw and judge campaigns.

    ``swapped`` swaps the sides of each launch at random.  Otherwise the chance mean of the recorded
    launches is part of every campaign, which many launches together find.  ``slowdown`` of side B is
    relative, 0 for A/A campaigns.
    """

    name: str
    swapped: bool
    delta: float = DEFAULT_DELTA
    slowdown: float = 0.0


#: The scatter is so far below the default limit that nearly all rows are the same.  The smallest
#: limit tests the claims "different", "slower" and "faster" alone.
SMALLEST_DELTA = 0.0001
DRAWS = (
    JudgedDraw("as recorded", swapped=False),
    JudgedDraw("sides swapped at random", swapped=True),
    JudgedDraw("sides swapped at random, delta 0.01 %", swapped=True, delta=SMALLEST_DELTA),
)
#: Slowdowns whose power is drawn; half of each counts as the same, as in the recorded campaigns.
SLOWDOWNS = (0.02, 0.01, 0.005)
SHAPES = (ScopeShape(HOST_SCOPE, 1, 1), ScopeShape(SITE_SCOPE, 1, 3), ScopeShape(SITES_SCOPE, 6, 3))


def verdict_shares(pool: Executor) -> Iterator[VerdictShare]:
    """Return the shares of false verdicts by label and scope, counters included, and the power."""
    launches = read_rows(paired_campaigns.LAUNCHES_FILE, PairedLaunch)
    campaigns = read_rows(paired_campaigns.CAMPAIGNS_FILE, CampaignResult)
    for label in sorted({one.label for one in launches}):
        name = f"paired, {label}"
        recorded = paired_campaigns.select_equal([one for one in launches if one.label == label])
        if len(recorded) >= MIN_RECORDED:
            yield from _false_verdict_shares(recorded, name, pool)
            yield from _power_shares(recorded, name, pool)
            yield from _consecutive_shares(recorded, name)
        yield from _counter_share([one for one in campaigns if one.label == label], name)


def _counter_share(campaigns: Sequence[CampaignResult], name: str) -> Iterator[VerdictShare]:
    if campaigns:
        yield VerdictShare(
            f"false rows, {name}, counter",
            sum(one.counters_changed for one in campaigns),
            sum(one.counters for one in campaigns),
        )


def _false_verdict_shares(
    recorded: Sequence[PairedLaunch], name: str, pool: Executor
) -> Iterator[VerdictShare]:
    for shape, draw in product(SHAPES, DRAWS):
        trials = [[*one.values()] for one in _judge_trials(recorded, shape, draw, pool)]
        rows = Counter(chain.from_iterable(chain.from_iterable(trials)))
        wrong = sum(_is_wrong(chain.from_iterable(one)) for one in trials)
        title = f"{name}, {shape.scope}, {draw.name}"
        yield VerdictShare(
            f"comparisons with a false verdict, {title}", wrong, TRIAL_COUNT, FALSE_VERDICT_RATE
        )
        false_rows = sum(rows[verdict] for verdict in WRONG_VERDICTS)
        yield VerdictShare(f"false rows, {title}", false_rows, rows.total())
        yield VerdictShare(f"rows called same, {title}", rows[Verdict.SAME], rows.total())


def _power_shares(
    recorded: Sequence[PairedLaunch], name: str, pool: Executor
) -> Iterator[VerdictShare]:
    """Return the shares of slowdowns found on one host, and of those called slower."""
    for slowdown in SLOWDOWNS:
        draw = JudgedDraw("", swapped=True, delta=slowdown / 2, slowdown=slowdown)
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for one in _judge_trials(recorded, SHAPES[0], draw, pool):
            for metric, verdicts in one.items():
                rows[metric].update(verdicts)
        for metric, counts in rows.items():
            title = f"planted {100 * slowdown:g} %, {METRIC_TITLES[metric]}, {name}"
            found = counts[Verdict.SLOWER] + counts[Verdict.DIFFERENT]
            yield VerdictShare(f"{title}: found", found, counts.total())
            yield VerdictShare(f"{title}: slower", counts[Verdict.SLOWER], counts.total())


def _judge_trials(
    recorded: Sequence[PairedLaunch], shape: ScopeShape, draw: JudgedDraw, pool: Executor
) -> Iterator[VerdictsByMetric]:
    judge = partial(judge_campaign, recorded, shape, draw)
    return pool.map(judge, range(TRIAL_COUNT), chunksize=10)


def _is_wrong(verdicts: Iterable[str]) -> bool:
    return any(verdict in WRONG_VERDICTS for verdict in verdicts)


def _consecutive_shares(recorded: Sequence[PairedLaunch], name: str) -> Iterator[VerdictShare]:
    """Yield shares over campaigns of consecutive launches, which share drifts of the machine."""
    for delta in (DEFAULT_DELTA, SMALLEST_DELTA):
        found = list(judge_consecutive(recorded, delta))
        wrong = sum(_is_wrong(chain.from_iterable(one.values())) for one in found)
        title = f"consecutive launches with a false verdict, {name}, delta {100 * delta:g} %"
        yield VerdictShare(title, wrong, len(found), FALSE_VERDICT_RATE)


def judge_consecutive(
    recorded: Sequence[PairedLaunch], delta: float = DEFAULT_DELTA
) -> Iterator[VerdictsByMetric]:
    """Compare campaigns of one variant on one host, made of the launches in order of time."""
    in_order = sorted(recorded, key=lambda launch: launch.started)
    count = CAMPAIGN_JOBS * JOB_LAUNCHES
    for first in range(0, len(in_order) - count + 1, count):
        some = [(launch, 1) for launch in in_order[first : first + count]]
        samples = _build_series(some, 0.0, SHAPES[0], "0-0")
        yield _judge_samples(samples, HOST_SCOPE, delta)


def judge_campaign(
    recorded: Sequence[PairedLaunch], shape: ScopeShape, draw: JudgedDraw, trial: int
) -> VerdictsByMetric:
    """Draw and compare one campaign; return the verdicts of its rows of the scope.

    Args:
        recorded: A/A launches.
        shape: sites, hosts and scope.
        draw: way to draw and judge it.
        trial: number of the campaign, which seeds the draw.
    """
    dice = np.random.default_rng([SEED, len(recorded), SHAPES.index(shape), draw.swapped, trial])
    samples = [
        sample
        for site, variant in product(range(shape.sites), range(VARIANTS))
        for sample in _draw_series(recorded, shape, draw, dice, f"{site}-{variant}")
    ]
    return _judge_samples(samples, shape.scope, draw.delta)


def _judge_samples(samples: Iterable[Sample], scope: str, delta: float) -> VerdictsByMetric:
    query = ComparisonQuery(AXIS, BASE, OTHER, delta=delta)
    verdicts: VerdictsByMetric = defaultdict(list)
    for row in compare_samples(samples, query, now_us=0).verdicts:
        if row.scope == scope:
            verdicts[row.metric].append(row.verdict)
    return verdicts


def _draw_series(
    recorded: Sequence[PairedLaunch],
    shape: ScopeShape,
    draw: JudgedDraw,
    dice: np.random.Generator,
    series: str,
) -> Iterator[Sample]:
    count = CAMPAIGN_JOBS * JOB_LAUNCHES
    places = dice.choice(len(recorded), count, replace=False)
    drawn = [(recorded[place], -1 if draw.swapped and dice.integers(2) else 1) for place in places]
    return _build_series(drawn, draw.slowdown, shape, series)


def _build_series(
    launches: Sequence[tuple[PairedLaunch, int]], slowdown: float, shape: ScopeShape, series: str
) -> Iterator[Sample]:
    """Build the samples of one series from its launches, each with the sign of its ratio."""
    for number, (launch, sign) in enumerate(launches):
        job, round_ = divmod(number, JOB_LAUNCHES)
        cpu, wall = (sign * d + math.log1p(slowdown) for d in (launch.cpu_d, launch.wall_d))
        ratios = {CPU: cpu, WALL: wall}
        yield from _build_halves(launch, ratios, series, job, round_, f"host{job % shape.hosts}")


def _build_halves(
    launch: PairedLaunch,
    ratios: Mapping[str, float],
    series: str,
    job: int,
    round_: int,
    host: str,
) -> Iterator[Sample]:
    """Build both sides of a launch; verdicts come from ``ratios``, its ln(B/A) by metric."""
    site, variant = series.split("-")
    a = {CPU: launch.cpu_a, WALL: launch.wall_a}
    b = {CPU: launch.cpu_b, WALL: launch.wall_b}
    for side, times, of_launch in ((BASE, a, {}), (OTHER, b, ratios)):
        yield make_sample(
            f"{series}-{job}",
            f"{round_}-{side}",
            {AXIS: side, "variant": int(variant)},
            site=f"site{site}",
            host=f"site{site}-{host}",
            round=round_ + 1,
            loop_cpu_s=launch.loop_s,
            metrics=times,
            launch_ratios=of_launch,
        )
