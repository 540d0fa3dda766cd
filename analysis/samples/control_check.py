"""Control of paired mode: A/A launches, in which nothing differs, in the jobs of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import fmean, stdev

from treehammer.analysis.samples.sample import HEADLINE_METRICS, Sample
from treehammer.analysis.statistics.control import ControlCheck
from treehammer.analysis.statistics.estimates import estimate_mean
from treehammer.collectors.job_spec import CONTROL


def check_controls(
    samples: Iterable[Sample], jobs: Collection[str], axis: str
) -> tuple[ControlCheck, ...]:
    """Check the controls of some jobs, for each headline metric that they recorded."""
    controls = [sample for sample in samples if sample.kind == CONTROL and sample.job_id in jobs]
    bases = {str(sample.axis_value(axis)) for sample in controls}
    base = bases.pop() if len(bases) == 1 else ""
    checks = []
    for metric in HEADLINE_METRICS:
        if ratios := _select_ratios(controls, metric):
            checks.append(_summarize_controls(metric, base, ratios))
    return tuple(checks)


def _select_ratios(controls: Iterable[Sample], metric: str) -> list[float]:
    return [
        control.launch_ratios[metric]
        for control in controls
        if metric in control.launch_ratios and not control.reason_unusable(metric)
    ]


def _summarize_controls(metric: str, base: str, ratios: list[float]) -> ControlCheck:
    spread = stdev(ratios) if len(ratios) > 1 else None
    estimate = estimate_mean(ratios)
    low, high = estimate.interval() if estimate else (None, None)
    return ControlCheck(metric, base, len(ratios), fmean(ratios), spread, low, high)
