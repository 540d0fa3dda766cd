"""False verdicts of ``compare``, and the number of jobs that detect a true slowdown.

Campaigns are drawn from the recorded A/A jobs and passed to ``compare``.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.analysis import aa_jobs, aa_plots
from benchmarks.analysis.aa_jobs import TARGET_JOBS, TWIN_COMPARISON, TwinJob
from benchmarks.analysis.resampling import CampaignShape, SamplingScheme, resample_campaign
from benchmarks.harness.ratio_figures import SEED, RatioFigure, write_rows
from treehammer.analysis.comparison.verdict_text import METRIC_TITLES
from treehammer.analysis.samples.sample import HEADLINE_METRICS
from treehammer.analysis.statistics import power_table
from treehammer.analysis.statistics.verdict import (
    RELEASE_SCOPE,
    RULE_VERSION,
    SERIES_SCOPE,
    Verdict,
)
from treehammer.errors import NothingToDoError

#: Shapes of campaigns, used in turn: six variants at six sites, at least six jobs each.
CAMPAIGN_SHAPES = tuple(CampaignShape(sites=6, variants=6, jobs=jobs) for jobs in (6, 9, 12))
#: Resamplings per sampling scheme, and per cell of the power table.
TRIAL_COUNT = 1000
SLOWDOWNS = (0.02, 0.05, 0.10)
SERIES_LENGTHS = (6, 9, 12, 18, 24, 36, 48, 72, 96)
#: Claimed error rate of a family of verdicts.
FALSE_VERDICT_RATE = 0.05
WRONG_VERDICTS = (Verdict.FASTER, Verdict.SLOWER)


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure false verdicts and power; a complete recording renews the shipped table."""
    recorded = aa_jobs.read_table(options.table)
    if len(recorded) < max(
        TARGET_JOBS if options.table == aa_jobs.TABLE_FILE else 0, *SERIES_LENGTHS
    ):
        raise NothingToDoError(
            f"{len(recorded)} A/A jobs are too few",
            where=str(options.table),
            hint=f"Record {TARGET_JOBS}: python -m benchmarks aa",
        )
    with ProcessPoolExecutor() as pool:
        shares = list(false_verdict_shares(recorded, pool))
        wanted = list(product(SLOWDOWNS, SERIES_LENGTHS))
        found = pool.map(partial(power_cells, recorded), *zip(*wanted, strict=True))
        table = [cell for pair in found for cell in pair]
    table.sort(key=lambda cell: (cell.metric, cell.slowdown, cell.jobs))
    write_rows("verdicts", [asdict(share) for share in shares])
    write_rows("power", [asdict(cell) for cell in table])
    if options.table == aa_jobs.TABLE_FILE:
        write_power_table(table, power_table.POWER_TABLE_FILE)
    aa_plots.plot_error_rates(
        {share.title: (share.fraction, *share.bounds) for share in shares}, FALSE_VERDICT_RATE
    )
    aa_plots.plot_power(table)
    return [*(share.to_figure() for share in shares), *_power_figures(table)]


@dataclass(frozen=True)
class VerdictShare:
    """Number of cases among ``of`` resamplings or rows; ``at_most`` is the limit."""

    title: str
    count: int
    total: int
    upper_bound: float | None = None

    @property
    def fraction(self) -> float:
        """The share as a fraction."""
        return self.count / self.total

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % Clopper–Pearson interval."""
        return clopper_pearson(self.count, self.total)

    def to_figure(self) -> RatioFigure:
        """Convert to a figure for the summary."""
        return RatioFigure(self.title, self.fraction, *self.bounds, self.total, self.upper_bound)


def clopper_pearson(count: int, of: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share."""
    interval = stats.binomtest(count, of).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)


@dataclass
class VerdictTally:
    """Counts of false verdicts over one or many comparisons without true effects.

    ``families`` counts comparisons with any false verdict, ``rows`` all rows, by scope and metric
    (``''`` for either).
    """

    families: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: Counter[tuple[str, str, Verdict | None]] = field(default_factory=Counter)

    def add(self, other: VerdictTally) -> None:
        """Add the counts of another tally."""
        self.families.update(other.families)
        self.rows.update(other.rows)


def tally_trial(recorded: Sequence[TwinJob], dealing: SamplingScheme, trial: int) -> VerdictTally:
    """Compare one resampled campaign without true effects."""
    number = list(SamplingScheme).index(dealing)
    found = resample_campaign(
        recorded, CAMPAIGN_SHAPES[trial % len(CAMPAIGN_SHAPES)], dealing, (SEED, number, trial)
    )
    result = VerdictTally()
    for row in found.verdicts:
        verdict = Verdict(row.verdict)
        wrong = verdict in WRONG_VERDICTS
        for metric in (row.metric, ""):
            result.families[row.scope, metric] |= wrong
            result.rows[row.scope, metric, None] += 1
            result.rows[row.scope, metric, verdict] += 1
    return result


def false_verdict_shares(
    recorded: Sequence[TwinJob], pool: ProcessPoolExecutor
) -> Iterator[VerdictShare]:
    """Return shares of comparisons and rows with a false verdict, and of rows called same."""
    for dealing in SamplingScheme:
        total = VerdictTally()
        for one in pool.map(
            partial(tally_trial, recorded, dealing), range(TRIAL_COUNT), chunksize=10
        ):
            total.add(one)
        for scope, metric in product((SERIES_SCOPE, RELEASE_SCOPE), ("", *HEADLINE_METRICS)):
            name = ", ".join((dealing.value, scope, METRIC_TITLES.get(metric, "CPU and wall")))
            wrong = total.families[scope, metric]
            yield VerdictShare(
                f"comparisons with a false verdict, {name}", wrong, TRIAL_COUNT, FALSE_VERDICT_RATE
            )
            rows = total.rows[scope, metric, None]
            wrong = sum(total.rows[scope, metric, verdict] for verdict in WRONG_VERDICTS)
            yield VerdictShare(f"false rows, {name}", wrong, rows)
            same = total.rows[scope, metric, Verdict.SAME]
            yield VerdictShare(f"rows called same, {name}", same, rows)


def power_cells(
    recorded: Sequence[TwinJob], slowdown: float, jobs: int
) -> list[power_table.PowerCell]:
    """Return how often a single series of each size detects each slowdown."""
    found: Counter[str] = Counter()
    for trial in range(TRIAL_COUNT):
        seed = (SEED, round(1000 * slowdown), jobs, trial)
        compared = resample_campaign(
            recorded, CampaignShape(1, 1, jobs), SamplingScheme.SCATTERED, seed, slowdown
        )
        found.update(
            row.metric
            for row in compared.verdicts_of_scope(SERIES_SCOPE)
            if row.verdict == Verdict.SLOWER
        )
    return [
        power_table.PowerCell(
            rule_version=RULE_VERSION,
            delta=TWIN_COMPARISON.delta,
            metric=metric,
            spread=round(float(np.std([job.log_ratio(metric) for job in recorded], ddof=1)), 5),
            slowdown=slowdown,
            jobs=jobs,
            trials=TRIAL_COUNT,
            found=found[metric],
            low=round(clopper_pearson(found[metric], TRIAL_COUNT)[0], 4),
            high=round(clopper_pearson(found[metric], TRIAL_COUNT)[1], 4),
        )
        for metric in HEADLINE_METRICS
    ]


def write_power_table(table: Iterable[power_table.PowerCell], path: Path) -> None:
    """Write the table that ``compare`` quotes."""
    rows = [asdict(cell) for cell in table]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _power_figures(table: Sequence[power_table.PowerCell]) -> Iterator[RatioFigure]:
    """Yield the quoted cells as figures."""
    for metric, slowdown in product(HEADLINE_METRICS, SLOWDOWNS):
        cell = power_table.choose_cell(
            [c for c in table if (c.metric, c.slowdown) == (metric, slowdown)]
        )
        title = f"{METRIC_TITLES[cell.metric]}, {100 * cell.slowdown:g} % slower, {cell.jobs} jobs"
        yield RatioFigure(f"found: {title}", cell.detection_rate, cell.low, cell.high, cell.trials)
