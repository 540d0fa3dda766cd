"""False verdicts of ``compare`` where nothing differs.

Campaigns are drawn from the recorded A/A jobs and passed to ``compare``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product

from benchmarks.analysis import aa_jobs, aa_plots, paired_resampling
from benchmarks.analysis.aa_jobs import TARGET_JOBS, TwinJob
from benchmarks.analysis.resampling import CampaignShape, SamplingScheme, resample_campaign
from benchmarks.analysis.verdict_shares import (
    FALSE_VERDICT_RATE,
    WRONG_VERDICTS,
    VerdictShare,
)
from benchmarks.harness.ratio_figures import SEED, RatioFigure, write_rows
from benchmarks.harness.result_tables import read_rows
from treehammer.analysis.comparison.wording.verdict_text import METRIC_TITLES
from treehammer.analysis.samples.sample import HEADLINE_METRICS
from treehammer.analysis.statistics.verdict import (
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
)
from treehammer.errors import NothingToDoError

#: Shapes of campaigns, used in turn: six variants at six sites, at least six jobs each.
CAMPAIGN_SHAPES = tuple(CampaignShape(sites=6, variants=6, jobs=jobs) for jobs in (6, 9, 12))
#: Recorded jobs that resampling needs.
MIN_RECORDED = 96
#: Resamplings per sampling scheme.
TRIAL_COUNT = 1000


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure false verdicts."""
    recorded = read_rows(options.table, TwinJob)
    if len(recorded) < (TARGET_JOBS if options.table == aa_jobs.TABLE_FILE else MIN_RECORDED):
        raise NothingToDoError(
            f"{len(recorded)} A/A jobs are too few",
            where=str(options.table),
            hint=f"Record {TARGET_JOBS}: python -m benchmarks aa",
        )
    with ProcessPoolExecutor() as pool:
        shares = list(false_verdict_shares(recorded, pool))
        paired = list(paired_resampling.verdict_shares(pool))
    write_rows("verdicts", [asdict(share) for share in shares])
    write_rows("verdicts-paired", [asdict(share) for share in paired])
    aa_plots.plot_error_rates(
        {share.title: (share.fraction, *share.bounds) for share in shares}, FALSE_VERDICT_RATE
    )
    return [share.to_figure() for share in (*shares, *paired)]


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
        for scope, metric in product((SITE_SCOPE, SITES_SCOPE), ("", *HEADLINE_METRICS)):
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
