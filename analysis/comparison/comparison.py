"""Two values of one axis compared: a verdict for every series, and for every release over sites."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from treehammer.analysis.comparison.comparability import ChecksumsBySlot, collect_checksums
from treehammer.analysis.comparison.control_evidence import attach_controls
from treehammer.analysis.comparison.effect_measurement import measure_effect
from treehammer.analysis.comparison.series_effects import SeriesEffect
from treehammer.analysis.comparison.series_sides import common_values, list_servers, split_sides
from treehammer.analysis.comparison.site_contrasts import SiteContrasts, contrast_sites
from treehammer.analysis.comparison.site_pooling import PooledEffect, pool_over_sites
from treehammer.analysis.comparison.wording import comparison_notes
from treehammer.analysis.samples.control_check import check_controls
from treehammer.analysis.samples.sample import Sample, unify_hosts
from treehammer.analysis.statistics.estimates import (
    Adjustment,
    Estimate,
    Judgement,
    PooledEstimate,
    adjust_benjamini_hochberg,
    adjust_holm,
    judge_family,
    plan_units,
)
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    OPEN_VERDICTS,
    RULE_VERSION,
    SERIES_SCOPES,
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
    VerdictEvidence,
)
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.matrix.definition import Scalar
from treehammer.hctests.matrix.headline import HeadlineMetric
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read.measurement_selection import Condition, Selection


@dataclass(frozen=True)
class ComparisonQuery:
    """A comparison of the value ``b`` of an axis with the value ``a``.

    Attributes:
        axis: the axis.
        a: the reference.
        b: the other value.
        delta: effects (in ln) within ±delta count as none.
        selection: the compared measurements.
        where_a: further conditions on side A alone.
        where_b: further conditions on side B alone.
        among: all values compared with ``a`` together, ``b`` included; they share one correction for
            the number of tests.
    """

    axis: str
    a: Scalar
    b: Scalar
    delta: float = DEFAULT_DELTA
    selection: Selection = field(default_factory=Selection)
    where_a: tuple[Condition, ...] = ()
    where_b: tuple[Condition, ...] = ()
    among: tuple[Scalar, ...] = ()

    def __post_init__(self) -> None:
        if self.a == self.b:
            raise ConfigError(f"both sides are {self.axis}={self.a}", where="compare")
        if not 0 < self.delta < 1:
            raise ConfigError(
                f"must lie between 0 and 1, not {self.delta:g}",
                where="--delta",
                hint="0.02 means that effects within about 2 % count as none.",
            )

    @property
    def id(self) -> str:
        """Hash of all attributes: a repeated comparison replaces the stored one."""
        parts = [RULE_VERSION, self.axis, self.a, self.b, self.delta, str(self.selection)]
        if self.where_a or self.where_b:
            parts += [[str(where) for where in side] for side in (self.where_a, self.where_b)]
        if self.among:
            parts.append(sorted(str(value) for value in self.among))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def compare_with_first(
    axis: str, values: Sequence[Scalar], *, delta: float, selection: Selection
) -> list[ComparisonQuery]:
    """Compare each further value with the first; several share one correction."""
    others = tuple(dict.fromkeys(values[1:]))
    among = others if len(others) > 1 else ()
    return [ComparisonQuery(axis, values[0], b, delta, selection, among=among) for b in others]


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: rows for the store, and notes.

    ``verdicts`` holds the rows of series first and then those over sites.  The evidence of the first
    holds the A/A launches of the same jobs.
    """

    query: ComparisonQuery
    pairs: tuple[PairRow, ...]
    verdicts: tuple[VerdictRow, ...]
    notes: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether anything was found slower by more than delta."""
        return any(row.verdict == Verdict.SLOWER for row in self.verdicts)

    @property
    def of_series(self) -> list[VerdictRow]:
        """The verdicts on hosts and single sites."""
        return [row for row in self.verdicts if row.scope in SERIES_SCOPES]

    @property
    def over_sites(self) -> list[VerdictRow]:
        """The verdicts over sites."""
        return [row for row in self.verdicts if row.scope == SITES_SCOPE]


def compare_samples(
    samples: Iterable[Sample], question: ComparisonQuery, *, now_us: int
) -> Comparison:
    """Compare both sides of ``question`` (see :func:`compare_together`)."""
    return compare_together(samples, [question], now_us=now_us)[0]


def compare_together(
    samples: Iterable[Sample], questions: Sequence[ComparisonQuery], *, now_us: int
) -> list[Comparison]:
    """Answer several questions that share one correction for the number of tests.

    Args:
        samples: timed and checksum executions; others than the questions' are ignored.
        questions: the comparisons, with one delta; at least one.
        now_us: time that the verdicts carry, microseconds since 1970 UTC.

    Returns:
        one comparison per question; without those for which nothing was recorded.

    Raises:
        NothingToDoError: no execution of any side recorded a headline metric or a failure.
    """
    samples = unify_hosts(samples)
    known = collect_checksums(samples)
    found = [(one, _measure_effects(samples, one, known)) for one in questions]
    answerable = [(question, effects) for question, effects in found if effects]
    if not answerable:
        values = " or ".join(str(one.b) for one in questions)
        raise NothingToDoError(
            f"no execution with {questions[0].axis}={questions[0].a} or {values} "
            "recorded CPU or wall time per event, or another headline metric of its test",
            where="compare",
            hint="A payload without the kit reports cpu_per_event_s and wall_per_event_s itself. A test "
            "of anything else names its metrics: headline in [test].",
        )
    pooled = [
        [] if question.axis == "site" else pool_over_sites(effects)
        for question, effects in answerable
    ]
    rule = _Rule(questions[0].delta, _count_looks(answerable))
    measured = chain.from_iterable(effects for _, effects in answerable)
    judged = iter(_judge_effects(list(measured), rule))
    over_sites = iter(_judge_pooled_effects(list(chain.from_iterable(pooled)), rule))
    return [
        _build_comparison(
            samples,
            _RowBuilder(question, now_us, contrast_sites(effects, group, rule.delta), rule.looks),
            list(zip(effects, islice(judged, len(effects)), strict=True)),
            list(zip(group, islice(over_sites, len(group)), strict=True)),
        )
        for (question, effects), group in zip(answerable, pooled, strict=True)
    ]


def _measure_effects(
    samples: Sequence[Sample], question: ComparisonQuery, known: ChecksumsBySlot
) -> list[SeriesEffect]:
    found = split_sides(samples, question.axis, question.a, question.b)
    executions = [one for series in found for one in (*series.a, *series.b)]
    return [
        measure_effect(series, metric, question.axis, known)
        for series in found
        for metric in (*series.a, *series.b)[0].headline
        if any(one.failure_class or metric.name in one.metrics for one in executions)
    ]


def _build_comparison(
    samples: Sequence[Sample],
    rows: _RowBuilder,
    series: Sequence[tuple[SeriesEffect, Judgement]],
    pooled: Sequence[tuple[PooledEffect, Judgement]],
) -> Comparison:
    verdicts = (
        *(rows.build_series_row(*pair) for pair in series),
        *(rows.build_pooled_row(*pair) for pair in pooled),
    )
    jobs = {pair.job_id for one, _ in series for pair in one.pairs}
    verdicts = attach_controls(verdicts, check_controls(samples, jobs, rows.question.axis))
    return Comparison(
        query=rows.question,
        pairs=tuple(row for one, _ in series for row in rows.build_pair_rows(one)),
        verdicts=verdicts,
        notes=tuple(comparison_notes.comparison_notes(verdicts)),
    )


def _count_looks(answerable: Sequence[tuple[ComparisonQuery, Sequence[SeriesEffect]]]) -> int:
    """Count the looks that share the error rate: the most of any compared execution's campaign."""
    series = (effect.series for _, effects in answerable for effect in effects)
    return max(sample.looks for sides in series for sample in (*sides.a, *sides.b))


@dataclass(frozen=True)
class _Rule:
    """Margin of effects that count as none, and the number of looks that share the error rate."""

    delta: float
    looks: int


def _judge_effects(effects: Sequence[SeriesEffect], rule: _Rule) -> list[Judgement]:
    estimates = [one.estimate if one.refused is None else None for one in effects]
    return _judge_known(effects, estimates, rule, adjust_benjamini_hochberg)


def _judge_pooled_effects(pooled: Sequence[PooledEffect], rule: _Rule) -> list[Judgement]:
    estimates = [
        one.pooled.estimate if one.pooled and one.refused is None else None for one in pooled
    ]
    return _judge_known(pooled, estimates, rule, adjust_holm)


def _judge_known(
    effects: Sequence[SeriesEffect | PooledEffect],
    estimates: Sequence[Estimate | None],
    rule: _Rule,
    adjust: Adjustment,
) -> list[Judgement]:
    """Judge the estimates together; a refused one stands outside the family."""
    answered = [estimate for estimate in estimates if estimate is not None]
    family = iter(judge_family(answered, rule.delta, adjust, rule.looks))
    return [
        Judgement(one.refused or Verdict.NOT_ENOUGH)
        if estimate is None
        else _orient_judgement(next(family), one.headline)
        for one, estimate in zip(effects, estimates, strict=True)
    ]


def _orient_judgement(judged: Judgement, headline: HeadlineMetric) -> Judgement:
    """Turn the verdict on a metric around if higher values of it are better."""
    turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    if headline.sign > 0 or judged.verdict not in turned:
        return judged
    return replace(judged, verdict=turned[judged.verdict])


def _condition_texts(wheres: Sequence[Condition]) -> tuple[str, ...]:
    return tuple(text for where in wheres for text in where.texts)


@dataclass(frozen=True)
class _Plan:
    """Size of a new campaign that is likely to decide; None where it is not known."""

    jobs: int | None = None
    hosts: int | None = None
    sites: int | None = None


def _plan_series(one: SeriesEffect, judged: Judgement, delta: float) -> _Plan:
    if judged.verdict is Verdict.NOT_ENOUGH and one.jobs and one.missing_jobs:
        return _Plan(jobs=one.jobs + one.missing_jobs)
    if judged.verdict not in OPEN_VERDICTS or one.estimate is None:
        return _Plan()
    if one.scope == SITE_SCOPE:
        hosts = plan_units(one.estimate, one.hosts, judged.planned_level, delta)
        return _Plan(hosts and math.ceil(hosts * one.jobs / one.hosts), hosts)
    return _Plan(plan_units(one.estimate, one.jobs, judged.planned_level, delta))


def _plan_pooled(one: PooledEffect, judged: Judgement, delta: float) -> _Plan:
    if judged.verdict not in OPEN_VERDICTS or one.pooled is None:
        return _Plan()
    estimate = one.pooled.estimate
    if one.pooled.tau is None:
        return _Plan(plan_units(estimate, one.jobs, judged.planned_level, delta))
    sites = plan_units(estimate, one.pooled.sites, judged.planned_level, delta)
    return _Plan(sites and sites * one.jobs_per_site, sites=sites)


class _RowBuilder:
    """Makes the store's rows of one comparison."""

    def __init__(
        self, question: ComparisonQuery, now_us: int, contrasts: SiteContrasts, looks: int
    ) -> None:
        self.question = question
        self._now_us = now_us
        self._contrasts = contrasts
        self._query_values: dict[str, Any] = {
            "campaigns": question.selection.campaigns,
            "where": _condition_texts(question.selection.conditions),
            "where_a": _condition_texts(question.where_a),
            "where_b": _condition_texts(question.where_b),
            "among": tuple(str(value) for value in question.among),
            "delta": question.delta,
            "looks": looks,
        }

    def build_pair_rows(self, one: SeriesEffect) -> Iterator[PairRow]:
        for pair in one.pairs:
            yield PairRow(
                comparison_id=self.question.id,
                job_id=pair.job_id,
                campaign_id=pair.campaign_id,
                site=one.series.site,
                host=pair.host,
                comparison_key=one.series.key,
                label=one.series.label,
                metric=one.metric,
                axis=self.question.axis,
                a=str(self.question.a),
                b=str(self.question.b),
                rounds=pair.rounds,
                a_value=pair.a,
                b_value=pair.b,
                log_ratio=pair.d,
            )

    def build_series_row(self, one: SeriesEffect, judged: Judgement) -> VerdictRow:
        a_value, b_value = one.side_means
        plan = _plan_series(one, judged, self.question.delta)
        evidence = VerdictEvidence(
            why=one.why,
            remedy=one.remedy or comparison_notes.REMEDIES.get(judged.verdict, ""),
            test=one.test_name if one.estimate else "",
            unpaired=one.unpaired,
            a_value=a_value,
            b_value=b_value,
            jobs_a=len(one.pairs or one.a),
            jobs_b=len(one.pairs or one.b),
            p=one.estimate.p if one.estimate else None,
            p_adjusted=judged.p_adjusted,
            level=judged.level,
            unit=one.headline.unit,
            better=one.headline.better,
            cpu_s=one.cpu_s,
            launches=one.launches if one.scope != SITE_SCOPE else 0,
            same_data=one.data_comparison.value,
            build=one.build.reasons,
            bundled=one.build.bundled,
            repackaged=one.build.repackaged,
            unknown=one.build.unknown,
            left_out=one.left_out,
            hosts_needed=plan.hosts,
            site_shift=self._contrasts.shifts.get((one.metric, one.series.site), ()),
            servers_a=list_servers(one.series.a),
            servers_b=list_servers(one.series.b),
            of_a=common_values(one.series.a),
            of_b=common_values(one.series.b),
            **self._query_values,
        )
        return self._build_row(
            one,
            one.estimate,
            judged,
            evidence,
            scope=one.scope,
            site=one.series.site,
            comparison_key=one.series.key,
            effect=one.mean,
            jobs_needed=plan.jobs,
        )

    def build_pooled_row(self, one: PooledEffect, judged: Judgement) -> VerdictRow:
        pooled = one.pooled
        estimate = pooled.estimate if pooled else None
        plan = _plan_pooled(one, judged, self.question.delta)
        evidence = VerdictEvidence(
            why=one.why,
            test=_name_pooled_test(pooled) if pooled else "",
            jobs_a=one.jobs,
            jobs_b=one.jobs,
            p=estimate.p if estimate else None,
            p_adjusted=judged.p_adjusted,
            level=judged.level,
            unit=one.headline.unit,
            better=one.headline.better,
            sites=one.sites,
            shared_hosts=one.shared_hosts,
            tau=pooled.tau if pooled else None,
            prediction=(pooled.prediction or ()) if pooled else (),
            sites_needed=plan.sites,
            points_at_change=(one.series.release, one.metric) in self._contrasts.slower,
            of_a=one.of_a,
            of_b=one.of_b,
            **self._query_values,
        )
        return self._build_row(
            one,
            estimate,
            judged,
            evidence,
            scope=SITES_SCOPE,
            site="",
            comparison_key=one.series.release,
            effect=estimate.mean if estimate else None,
            jobs_needed=plan.jobs,
        )

    def _build_row(
        self,
        one: SeriesEffect | PooledEffect,
        estimate: Estimate | None,
        judged: Judgement,
        evidence: VerdictEvidence,
        **columns: Any,
    ) -> VerdictRow:
        low, high = estimate.interval(judged.level) if estimate else (None, None)
        return VerdictRow(
            comparison_id=self.question.id,
            created_us=self._now_us,
            rule_version=RULE_VERSION,
            label=one.series.label,
            metric=one.metric,
            axis=self.question.axis,
            a=str(self.question.a),
            b=str(self.question.b),
            verdict=judged.verdict.value,
            low=low,
            high=high,
            jobs=one.jobs,
            hosts=one.hosts,
            evidence=evidence.to_json(),
            **columns,
        )


def _name_pooled_test(pooled: PooledEstimate) -> str:
    return "mean of these sites" if pooled.tau is None else "Hartung-Knapp, equal weights"
