"""Control of paired mode: A/A launches, in which nothing differs, in the jobs of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

from treehammer.analysis.samples.sample import HEADLINE_METRICS, Sample
from treehammer.analysis.statistics.estimates import estimate_mean
from treehammer.collectors.job_spec import CONTROL

#: Controls whose mean abs(ln(B/A)) is at most this are good, even if their interval excludes 0.
MAX_CONTROL_EFFECT = 0.01


@dataclass(frozen=True)
class ControlCheck:
    """Controls of one metric: mean and standard deviation of ln(B/A) over their launches.

    ``base`` is the value of the compared axis that is compared with itself, '' for several values.
    ``sd`` is None for a single launch, the 95 % interval also for launches without spread.
    """

    metric: str
    base: str
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

    @property
    def is_in_order(self) -> bool:
        """Whether several launches differ by less than the bound on average."""
        return self.launches > 1 and abs(self.mean) <= MAX_CONTROL_EFFECT


def check_controls(
    samples: Iterable[Sample], jobs: Collection[str], axis: str
) -> tuple[ControlCheck, ...]:
    """Check the controls of some jobs, for each headline metric that they recorded."""
    controls = [one for one in samples if one.kind == CONTROL and one.job_id in jobs]
    bases = {str(one.axis_value(axis)) for one in controls}
    base = bases.pop() if len(bases) == 1 else ""
    checks = []
    for metric in HEADLINE_METRICS:
        if ratios := _select_ratios(controls, metric):
            checks.append(_summarize_controls(metric, base, ratios))
    return tuple(checks)


def _select_ratios(controls: Iterable[Sample], metric: str) -> list[float]:
    return [
        one.launch_ratios[metric]
        for one in controls
        if metric in one.launch_ratios and not one.reason_unusable(metric)
    ]


def _summarize_controls(metric: str, base: str, ratios: list[float]) -> ControlCheck:
    spread = stdev(ratios) if len(ratios) > 1 else None
    estimate = estimate_mean(ratios)
    low, high = estimate.interval() if estimate else (None, None)
    return ControlCheck(metric, base, len(ratios), fmean(ratios), spread, low, high)
