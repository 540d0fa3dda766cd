"""Control of paired mode: A/A launches, in which nothing differs, in the jobs of a comparison."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats

from treehammer.analysis.samples.sample import HEADLINE_METRICS, Sample
from treehammer.collectors.job_spec import CONTROL

#: Mean |ln(B/A)| of controls up to which they count as good, whatever their interval.
MAX_CONTROL_EFFECT = 0.01
#: Coverage of the interval of the mean.
COVERAGE = 0.95


@dataclass(frozen=True)
class ControlCheck:
    """Controls of one metric: mean and standard deviation of ln(B/A) over their launches.

    ``sd``, ``low`` and ``high`` are None for a single launch.
    """

    metric: str
    launches: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None

    @property
    def is_off(self) -> bool:
        """Whether the two equal halves differ: beyond doubt, and by more than a bound."""
        if self.low is None or self.high is None or abs(self.mean) <= MAX_CONTROL_EFFECT:
            return False
        return self.low > 0 or self.high < 0


def check_controls(samples: Iterable[Sample], jobs: Collection[str]) -> tuple[ControlCheck, ...]:
    """Check the controls of some jobs, for each headline metric that they recorded."""
    controls = [one for one in samples if one.kind == CONTROL and one.job_id in jobs]
    checks = []
    for metric in HEADLINE_METRICS:
        ratios = [
            one.launch_ratios[metric]
            for one in controls
            if metric in one.launch_ratios and not one.reason_unusable(metric)
        ]
        if ratios:
            checks.append(_summarize_controls(metric, ratios))
    return tuple(checks)


def _summarize_controls(metric: str, ratios: list[float]) -> ControlCheck:
    count, mean = len(ratios), fmean(ratios)
    if count < 2:
        return ControlCheck(metric, count, mean, None, None, None)
    spread = stdev(ratios)
    half = float(stats.t.ppf((1 + COVERAGE) / 2, count - 1)) * spread / math.sqrt(count)
    return ControlCheck(metric, count, mean, spread, mean - half, mean + half)
