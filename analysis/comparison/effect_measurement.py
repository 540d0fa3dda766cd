"""Measurement of a series' effect from its jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from treehammer.analysis.comparison.comparability import (
    ChecksumsBySlot,
    compare_builds,
    compare_data,
)
from treehammer.analysis.comparison.refusals import find_refusal_reasons
from treehammer.analysis.comparison.series_effects import SeriesEffect, estimate_effect, select_jobs
from treehammer.analysis.comparison.series_sides import SeriesSides
from treehammer.analysis.samples.job_pairs import (
    JobValue,
    collect_job_values,
    drop_dirty,
    pair_jobs,
)
from treehammer.analysis.samples.sample import Sample
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.hctests.matrix.definition import COMMIT_AXIS
from treehammer.hctests.matrix.headline import HeadlineMetric


def measure_effect(
    series: SeriesSides, headline: HeadlineMetric, axis: str, checksums: ChecksumsBySlot
) -> SeriesEffect:
    """Measure one series: pairs where jobs hold both sides, else unpaired jobs."""
    metric = headline.name
    a, b, dirty = (list(series.a), list(series.b), Counter[str]())
    if axis != COMMIT_AXIS:  # a modified working tree is a value of that axis
        a, b, dirty = drop_dirty(series.a, series.b)
    pairs, left_out = pair_jobs(a, b, metric, series.elsewhere)
    values_a: list[JobValue] = []
    values_b: list[JobValue] = []
    if pairs:
        pairs, unused = select_jobs(pairs)
        left_out += unused
    else:
        values_a, left_a = collect_job_values(a, metric)
        values_b, left_b = collect_job_values(b, metric)
        values_a, unused_a = select_jobs(values_a)
        values_b, unused_b = select_jobs(values_b)
        left_out = left_a + left_b + unused_a + unused_b
    measured = SeriesEffect(
        series=series,
        headline=headline,
        pairs=tuple(pairs),
        a=tuple(values_a),
        b=tuple(values_b),
        left_out=dict(sorted((left_out + dirty).items())),
        build=compare_builds(
            _select_valid_samples(a, metric), _select_valid_samples(b, metric), axis
        ),
        data_comparison=compare_data(a, b, checksums, axis),
        estimate=None,
    )
    return _estimate_or_refuse(measured)


def _select_valid_samples(side: Sequence[Sample], metric: str) -> Sequence[Sample]:
    """Select the executions that count, so that no failed one speaks for the build; all if none counts."""
    return [sample for sample in side if not sample.reason_unusable(metric)] or side


def _estimate_or_refuse(measured: SeriesEffect) -> SeriesEffect:
    """Estimate the effect, or refuse the series for the first of its reasons."""
    forbidden = measured.data_comparison.forbids_comparison
    judged = replace(measured, estimate=None if forbidden else estimate_effect([measured]))
    reasons = list(find_refusal_reasons(judged))
    if not reasons:
        return judged
    first = reasons[0]
    judged = replace(
        judged,
        refused=first.verdict,
        why="; ".join(reason.why for reason in reasons),
        remedy=first.remedy,
    )
    if first.verdict is Verdict.VALUES_DIFFER:
        # Different values are never compared: none of them reaches the pair table either.
        return replace(judged, pairs=(), a=(), b=())
    return judged
