"""False verdicts of ``compare`` on A/A launches of paired mode, by scope.

Campaigns are drawn from the recorded launches and passed to ``compare``; sites and hosts are only
names.  Tables of earlier estimates of a launch's ratio are judged apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from benchmarks.analysis import paired_campaigns
from benchmarks.analysis.paired_recording import (
    AXIS,
    BASE,
    CAMPAIGN_JOBS,
    CPU,
    OTHER,
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
from treehammer.collectors.job_spec import CONTROL, TIMED
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
DRAWS = (
    JudgedDraw("as recorded", swapped=False),
    JudgedDraw("sides swapped at random", swapped=True),
    JudgedDraw("sides swapped at random, delta 0.01 %", swapped=True, delta=0.0001),
)
SHAPES = (ScopeShape(HOST_SCOPE, 1, 1), ScopeShape(SITE_SCOPE, 1, 3), ScopeShape(SITES_SCOPE, 6, 3))


def select_equal(launches: Sequence[PairedLaunch]) -> list[PairedLaunch]:
    """Select the A/A launches: those without planted work, and controls."""
    return [one for one in launches if not one.blocks or one.kind == CONTROL]


def false_verdict_shares(pool: Executor) -> Iterator[VerdictShare]:
    """Return the shares of false verdicts by estimate, label and scope, counters included."""
    for estimate, (launches_file, campaigns_file) in TABLES.items():
        launches = paired_campaigns.read_rows(launches_file, PairedLaunch)
        campaigns = paired_campaigns.read_rows(campaigns_file, CampaignResult)
        for label in sorted({one.label for one in launches}):
            name = f"paired, {estimate}, {label}"
            recorded = select_equal([one for one in launches if one.label == label])
            if len(recorded) >= MIN_RECORDED:
                yield from _resampled_shares(recorded, name, pool)
            counted = [one for one in campaigns if one.label == label]
            if counted:
                yield VerdictShare(
                    f"false rows, {name}, counter",
                    sum(one.counters_changed for one in counted),
                    sum(one.counters for one in counted),
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
    query = ComparisonQuery(AXIS, BASE, OTHER, delta=draw.delta)
    found = compare_samples(samples, query, now_us=0)
    return [row.verdict for row in found.verdicts if row.scope == shape.scope]


def _draw_series(
    recorded: Sequence[PairedLaunch],
    shape: ScopeShape,
    swapped: bool,
    dice: np.random.Generator,
    series: str,
) -> Iterator[Sample]:
    count = CAMPAIGN_JOBS * JOB_LAUNCHES
    for number, place in enumerate(dice.choice(len(recorded), count, replace=False)):
        job, round_ = divmod(number, JOB_LAUNCHES)
        sign = -1 if swapped and dice.integers(2) else 1
        host = f"host{job % shape.hosts}"
        yield from _build_halves(recorded[place], sign, series, job, round_, host)


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
