"""How often ``compare`` finds what is not there, and how many jobs it takes to find what is.

Campaigns are dealt from the recorded A/A jobs and go through the very ``compare`` that users call.
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
from statsmodels.stats.proportion import proportion_confint

from benchmarks import aa_jobs, aa_plots
from benchmarks.aa_jobs import JOBS, QUESTION, Job
from benchmarks.report import SEED, Figure, write_rows
from benchmarks.resampling import Dealing, Shape, resample
from treehammer.analysis import power
from treehammer.analysis.samples import HEADLINE_METRICS
from treehammer.analysis.verdict import RELEASE, RULE_VERSION, SERIES, Verdict
from treehammer.analysis.wording import METRIC_TITLES
from treehammer.errors import NothingToDo

#: Campaigns as they are run, in turn: six variants at six sites, six jobs each or more.
SHAPES = tuple(Shape(sites=6, variants=6, jobs=jobs) for jobs in (6, 9, 12))
#: Resamplings for each way of dealing, and for each cell of the table of power.
TRIALS = 1000
SLOWDOWNS = (0.02, 0.05, 0.10)
SERIES_OF = (6, 9, 12, 18, 24, 36, 48, 72, 96)
#: The error rate that a family of verdicts claims to keep.
FALSE = 0.05
WRONG = (Verdict.FASTER, Verdict.SLOWER)


def measure(options: argparse.Namespace) -> list[Figure]:
    """False verdicts and power of what was recorded; a whole recording makes the shipped table."""
    recorded = aa_jobs.read_table(options.table)
    if len(recorded) < max(JOBS if options.table == aa_jobs.TABLE else 0, *SERIES_OF):
        raise NothingToDo(
            f"{len(recorded)} A/A jobs are too few",
            where=str(options.table),
            hint=f"Record {JOBS}: python -m benchmarks aa",
        )
    with ProcessPoolExecutor() as pool:
        shares = list(false_verdicts(recorded, pool))
        wanted = list(product(SLOWDOWNS, SERIES_OF))
        found = pool.map(partial(cells, recorded), *zip(*wanted, strict=True))
        table = [cell for pair in found for cell in pair]
    table.sort(key=lambda cell: (cell.metric, cell.slowdown, cell.jobs))
    write_rows("verdicts", [asdict(share) for share in shares])
    write_rows("power", [asdict(cell) for cell in table])
    if options.table == aa_jobs.TABLE:
        write_table(table, power.TABLE)
    aa_plots.draw_shares({share.what: (share.share, *share.bounds) for share in shares}, FALSE)
    aa_plots.draw_power(table)
    return [*(share.figure() for share in shares), *_power_figures(table)]


@dataclass(frozen=True)
class Share:
    """How many of ``of`` resamplings, or rows, had it; ``at_most`` is what may not be exceeded."""

    what: str
    count: int
    of: int
    at_most: float | None = None

    @property
    def share(self) -> float:
        """As a fraction."""
        return self.count / self.of

    @property
    def bounds(self) -> tuple[float, float]:
        """Clopper and Pearson's interval, 95 %."""
        return clopper_pearson(self.count, self.of)

    def figure(self) -> Figure:
        """For people, and for the summary."""
        return Figure(self.what, self.share, *self.bounds, self.of, self.at_most)


def clopper_pearson(count: int, of: int) -> tuple[float, float]:
    """The exact 95 % interval of a share."""
    low, high = proportion_confint(count, of, alpha=0.05, method="beta")
    return float(low), float(high)


@dataclass
class Tally:
    """What one comparison, or many, concluded where nothing differs.

    ``families`` counts comparisons with any wrong verdict, ``rows`` all rows, by scope and metric
    (``''``: either).
    """

    families: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: Counter[tuple[str, str, Verdict | None]] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Sum up."""
        self.families.update(other.families)
        self.rows.update(other.rows)


def tally(recorded: Sequence[Job], dealing: Dealing, trial: int) -> Tally:
    """Compare one resampling of a campaign in which nothing differs."""
    number = list(Dealing).index(dealing)
    found = resample(recorded, SHAPES[trial % len(SHAPES)], dealing, (SEED, number, trial))
    result = Tally()
    for row in found.verdicts:
        verdict = Verdict(row.verdict)
        wrong = verdict in WRONG
        for metric in (row.metric, ""):
            result.families[row.scope, metric] |= wrong
            result.rows[row.scope, metric, None] += 1
            result.rows[row.scope, metric, verdict] += 1
    return result


def false_verdicts(recorded: Sequence[Job], pool: ProcessPoolExecutor) -> Iterator[Share]:
    """Shares of comparisons and of rows with a wrong verdict, and of rows that are called same."""
    for dealing in Dealing:
        total = Tally()
        for one in pool.map(partial(tally, recorded, dealing), range(TRIALS), chunksize=10):
            total.add(one)
        for scope, metric in product((SERIES, RELEASE), ("", *HEADLINE_METRICS)):
            name = ", ".join((dealing.value, scope, METRIC_TITLES.get(metric, "CPU and wall")))
            wrong = total.families[scope, metric]
            yield Share(f"comparisons with a false verdict, {name}", wrong, TRIALS, FALSE)
            rows = total.rows[scope, metric, None]
            wrong = sum(total.rows[scope, metric, verdict] for verdict in WRONG)
            yield Share(f"false rows, {name}", wrong, rows)
            same = total.rows[scope, metric, Verdict.SAME]
            yield Share(f"rows called same, {name}", same, rows)


def cells(recorded: Sequence[Job], slowdown: float, jobs: int) -> list[power.Cell]:
    """How often a slowdown is found by one series of so many jobs that stands alone."""
    found: Counter[str] = Counter()
    for trial in range(TRIALS):
        seed = (SEED, round(1000 * slowdown), jobs, trial)
        compared = resample(recorded, Shape(1, 1, jobs), Dealing.SCATTERED, seed, slowdown)
        found.update(
            row.metric for row in compared.of_scope(SERIES) if row.verdict == Verdict.SLOWER
        )
    return [
        power.Cell(
            rule_version=RULE_VERSION,
            delta=QUESTION.delta,
            metric=metric,
            spread=round(float(np.std([job.d(metric) for job in recorded], ddof=1)), 5),
            slowdown=slowdown,
            jobs=jobs,
            trials=TRIALS,
            found=found[metric],
            low=round(clopper_pearson(found[metric], TRIALS)[0], 4),
            high=round(clopper_pearson(found[metric], TRIALS)[1], 4),
        )
        for metric in HEADLINE_METRICS
    ]


def write_table(table: Iterable[power.Cell], path: Path) -> None:
    """Write the table that ``compare`` quotes."""
    rows = [asdict(cell) for cell in table]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _power_figures(table: Sequence[power.Cell]) -> Iterator[Figure]:
    """The cells that ``compare`` quotes."""
    for metric, slowdown in product(HEADLINE_METRICS, SLOWDOWNS):
        cell = power.enough([c for c in table if (c.metric, c.slowdown) == (metric, slowdown)])
        title = f"{METRIC_TITLES[cell.metric]}, {100 * cell.slowdown:g} % slower, {cell.jobs} jobs"
        yield Figure(f"found: {title}", cell.share, cell.low, cell.high, cell.trials)
