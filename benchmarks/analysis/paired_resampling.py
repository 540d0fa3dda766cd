"""False verdicts of ``compare`` on A/A launches of paired mode, by scope.

Campaigns are drawn from the recorded launches, or made of consecutive ones, and passed to
``compare``; sites and hosts are only names.  Tables of earlier estimates of a launch's ratio are judged apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import product

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
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.samples.sample import Sample
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    HOST_SCOPE,
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
)
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION
from treehammer.hctests.matrix.definition import Variant

#: Estimate of a launch's ratio -> its tables of launches and campaigns.
TABLES = {
    "estimate": (paired_campaigns.LAUNCHES_FILE, paired_campaigns.CAMPAIGNS_FILE),
    "former estimate": tuple(
        paired_campaigns.DATA_FOLDER / f"paired-{name}-before.csv"
        for name in ("launches", "campaigns")
    ),
}
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
    launches is part of every campaign, which many launches together find.
    """

    name: str
    swapped: bool
    delta: float = DEFAULT_DELTA


#: The scatter is so far below the default limit that nearly all rows are the same.  The smallest
#: limit tests the claims "different", "slower" and "faster" alone.
SMALLEST_DELTA = 0.0001
DRAWS = (
    JudgedDraw("as recorded", swapped=False),
    JudgedDraw("sides swapped at random", swapped=True),
    JudgedDraw("sides swapped at random, delta 0.01 %", swapped=True, delta=SMALLEST_DELTA),
)
SHAPES = (ScopeShape(HOST_SCOPE, 1, 1), ScopeShape(SITE_SCOPE, 1, 3), ScopeShape(SITES_SCOPE, 6, 3))


def false_verdict_shares(pool: Executor) -> Iterator[VerdictShare]:
    """Return the shares of false verdicts by estimate, label and scope, counters included."""
    for estimate, (launches_file, campaigns_file) in TABLES.items():
        launches = paired_campaigns.read_rows(launches_file, PairedLaunch)
        campaigns = paired_campaigns.read_rows(campaigns_file, CampaignResult)
        for label in sorted({one.label for one in launches}):
            name = f"paired, {estimate}, {label}"
            recorded = paired_campaigns.select_equal(
                [one for one in launches if one.label == label]
            )
            if len(recorded) >= MIN_RECORDED:
                yield from _resampled_shares(recorded, name, pool)
                yield from _consecutive_shares(recorded, name)
            yield from _counter_share([one for one in campaigns if one.label == label], name)


def _counter_share(campaigns: Sequence[CampaignResult], name: str) -> Iterator[VerdictShare]:
    if campaigns:
        yield VerdictShare(
            f"false rows, {name}, counter",
            sum(one.counters_changed for one in campaigns),
            sum(one.counters for one in campaigns),
        )


def _resampled_shares(
    recorded: Sequence[PairedLaunch], name: str, pool: Executor
) -> Iterator[VerdictShare]:
    for shape, draw in product(SHAPES, DRAWS):
        rows: Counter[str] = Counter()
        wrong = 0
        trials = pool.map(
            partial(judge_campaign, recorded, shape, draw), range(TRIAL_COUNT), chunksize=10
        )
        for verdicts in trials:
            rows.update(verdicts)
            wrong += any(verdict in WRONG_VERDICTS for verdict in verdicts)
        title = f"{name}, {shape.scope}, {draw.name}"
        yield VerdictShare(
            f"comparisons with a false verdict, {title}", wrong, TRIAL_COUNT, FALSE_VERDICT_RATE
        )
        false_rows = sum(rows[verdict] for verdict in WRONG_VERDICTS)
        yield VerdictShare(f"false rows, {title}", false_rows, rows.total())
        yield VerdictShare(f"rows called same, {title}", rows[Verdict.SAME], rows.total())


def _consecutive_shares(recorded: Sequence[PairedLaunch], name: str) -> Iterator[VerdictShare]:
    """Shares over campaigns of consecutive launches, which share drifts of the machine."""
    for delta in (DEFAULT_DELTA, SMALLEST_DELTA):
        found = list(judge_consecutive(recorded, delta))
        wrong = sum(any(verdict in WRONG_VERDICTS for verdict in one) for one in found)
        title = f"consecutive launches with a false verdict, {name}, delta {100 * delta:g} %"
        yield VerdictShare(title, wrong, len(found), FALSE_VERDICT_RATE)


def judge_consecutive(
    recorded: Sequence[PairedLaunch], delta: float = DEFAULT_DELTA
) -> Iterator[list[str]]:
    """Compare campaigns of one variant on one host, made of the launches in order of time."""
    in_order = sorted(recorded, key=lambda launch: launch.started)
    count = CAMPAIGN_JOBS * JOB_LAUNCHES
    for first in range(0, len(in_order) - count + 1, count):
        some = [(launch, 1) for launch in in_order[first : first + count]]
        yield _judge_samples(_build_series(some, SHAPES[0], "0-0"), HOST_SCOPE, delta)


def judge_campaign(
    recorded: Sequence[PairedLaunch], shape: ScopeShape, draw: JudgedDraw, trial: int
) -> list[str]:
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
        for sample in _draw_series(recorded, shape, draw.swapped, dice, f"{site}-{variant}")
    ]
    return _judge_samples(samples, shape.scope, draw.delta)


def _judge_samples(samples: Iterable[Sample], scope: str, delta: float) -> list[str]:
    query = ComparisonQuery(AXIS, BASE, OTHER, delta=delta)
    found = compare_samples(samples, query, now_us=0)
    return [row.verdict for row in found.verdicts if row.scope == scope]


def _draw_series(
    recorded: Sequence[PairedLaunch],
    shape: ScopeShape,
    swapped: bool,
    dice: np.random.Generator,
    series: str,
) -> Iterator[Sample]:
    count = CAMPAIGN_JOBS * JOB_LAUNCHES
    places = dice.choice(len(recorded), count, replace=False)
    drawn = [(recorded[place], -1 if swapped and dice.integers(2) else 1) for place in places]
    return _build_series(drawn, shape, series)


def _build_series(
    launches: Sequence[tuple[PairedLaunch, int]], shape: ScopeShape, series: str
) -> Iterator[Sample]:
    """Build the samples of one series from its launches, each with the sign of its ratio."""
    for number, (launch, sign) in enumerate(launches):
        job, round_ = divmod(number, JOB_LAUNCHES)
        yield from _build_halves(launch, sign, series, job, round_, f"host{job % shape.hosts}")


def _build_halves(
    launch: PairedLaunch, sign: int, series: str, job: int, round_: int, host: str
) -> Iterator[Sample]:
    site, variant = series.split("-")
    a = {CPU: launch.cpu_a, WALL: launch.wall_a}
    b = {CPU: launch.cpu_b, WALL: launch.wall_b}
    ratios = {CPU: sign * launch.cpu_d, WALL: sign * launch.wall_d}
    for side, times, of_launch in ((BASE, a, {}), (OTHER, b, ratios)):
        yield Sample(
            measurement_id=f"{series}-{job}-{round_}-{side}",
            kind=TIMED,
            job_id=f"{series}-{job}",
            campaign_id="resampled",
            test_name="planted",
            test_hash="planted",
            site=f"site{site}",
            door="file",
            door_protocol="file",
            host=f"site{site}-{host}",
            variant=Variant(((AXIS, side), ("variant", int(variant)))),
            round=round_ + 1,
            instrument_version=INSTRUMENT_VERSION,
            loop_cpu_s=launch.loop_s,
            metrics=times,
            launch_ratios=of_launch,
        )
