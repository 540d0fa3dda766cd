"""Comparison of two values of an axis: a verdict for every series, and for every release over sites."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from treehammer.analysis.comparison import comparison_notes
from treehammer.analysis.comparison.series_effects import SeriesEffect, measure_effect
from treehammer.analysis.comparison.series_sides import (
    ChecksumsBySlot,
    collect_checksums,
    common_values,
    compare_nodes,
    list_servers,
    split_sides,
)
from treehammer.analysis.comparison.site_pooling import (
    PooledEffect,
    SiteContrasts,
    contrast_sites,
    pool_over_sites,
)
from treehammer.analysis.statistics.estimates import (
    Adjustment,
    Judgement,
    adjust_benjamini_hochberg,
    adjust_holm,
    judge_family,
    plan_units,
)
from treehammer.analysis.statistics.job_pairs import check_controls
from treehammer.analysis.statistics.sample import Sample, assign_compilers, unify_hosts
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    OPEN_VERDICTS,
    RULE_VERSION,
    SERIES_SCOPES,
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
    attach_controls,
)
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.judged_metrics import HeadlineMetric
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.core.evidence import ControlCheck, VerdictEvidence
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read.query_model import Condition, Selection


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
    further = tuple(dict.fromkeys(values[1:]))
    among = further if len(further) > 1 else ()
    return [ComparisonQuery(axis, values[0], b, delta, selection, among=among) for b in further]


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
    samples: Iterable[Sample], query: ComparisonQuery, *, now_us: int
) -> Comparison:
    """Compare both sides of ``query`` (see :func:`compare_together`)."""
    return compare_together(samples, [query], now_us=now_us)[0]


def compare_together(
    samples: Iterable[Sample], queries: Sequence[ComparisonQuery], *, now_us: int
) -> list[Comparison]:
    """Run several queries that share one correction for the number of tests.

    Args:
        samples: timed and checksum executions; those that no query selects are ignored.
        queries: the comparisons, with one delta; at least one.
        now_us: time that the verdicts carry, microseconds since 1970 UTC.

    Returns:
        one comparison per query, without those for which nothing was recorded.

    Raises:
        NothingToDoError: no execution of any side recorded a headline metric or a failure.
    """
    samples = assign_compilers(unify_hosts(samples))
    checksums = collect_checksums(samples)
    measured_queries = [(query, _measure_effects(samples, query, checksums)) for query in queries]
    answerable = [(query, effects) for query, effects in measured_queries if effects]
    if not answerable:
        values = " or ".join(str(query.b) for query in queries)
        raise NothingToDoError(
            f"no execution with {queries[0].axis}={queries[0].a} or {values} "
            "recorded CPU or wall time per event, or another headline metric of its test",
            where="compare",
            hint="A payload without the kit reports cpu_per_event_s and wall_per_event_s itself. A test "
            "of anything else names its metrics: headline in [test].",
        )
    pooled = [
        [] if query.axis == "site" else pool_over_sites(effects) for query, effects in answerable
    ]
    rule = _find_rule(queries[0].delta, answerable)
    series = list(chain.from_iterable(effects for _, effects in answerable))
    judged = iter(_judge_effects(series, rule, adjust_benjamini_hochberg))
    over_sites = iter(_judge_effects(list(chain.from_iterable(pooled)), rule, adjust_holm))
    return [
        _build_comparison(
            samples,
            _RowBuilder(query, now_us, contrast_sites(effects, group, rule.delta), rule),
            list(zip(effects, islice(judged, len(effects)), strict=True)),
            list(zip(group, islice(over_sites, len(group)), strict=True)),
        )
        for (query, effects), group in zip(answerable, pooled, strict=True)
    ]


def _measure_effects(
    samples: Sequence[Sample], query: ComparisonQuery, checksums: ChecksumsBySlot
) -> list[SeriesEffect]:
    series_list = split_sides(samples, query.axis, query.a, query.b)
    executions = [*chain.from_iterable((*series.a, *series.b) for series in series_list)]
    failed_tests = {execution.test_hash for execution in executions if execution.failure_class}
    recorded = {(sample.test_hash, name) for sample in executions for name in sample.metrics}
    effects = []
    for series in series_list:
        first = next(chain(series.a, series.b))
        for metric in first.headline:
            if first.test_hash in failed_tests or (first.test_hash, metric.name) in recorded:
                effects.append(measure_effect(series, metric, query.axis, checksums))
    return effects


def _build_comparison(
    samples: Sequence[Sample],
    rows: _RowBuilder,
    series: Sequence[tuple[SeriesEffect, Judgement]],
    pooled: Sequence[tuple[PooledEffect, Judgement]],
) -> Comparison:
    jobs = {pair.job_id for effect, _ in series for pair in effect.pairs}
    controls = [*check_controls(samples, jobs, rows.query.axis)]
    off = {check.metric for check in controls if check.is_off}
    verdicts = (
        *(
            rows.build_series_row(effect, _withhold(judged, effect.metric, off), controls)
            for effect, judged in series
        ),
        *(
            rows.build_pooled_row(effect, _withhold(judged, effect.metric, off))
            for effect, judged in pooled
        ),
    )
    verdicts = attach_controls(verdicts, controls)
    return Comparison(
        query=rows.query,
        pairs=tuple(row for effect, _ in series for row in rows.build_pair_rows(effect)),
        verdicts=verdicts,
        notes=tuple(comparison_notes.comparison_notes(verdicts)),
    )


def _withhold(judged: Judgement, metric: str, off: Collection[str]) -> Judgement:
    """Withhold a verdict on a metric in which equal sides differ beyond doubt."""
    if metric not in off or not judged.verdict.is_statistical:
        return judged
    return replace(judged, verdict=Verdict.CONTROL_OFF)


@dataclass(frozen=True)
class _Rule:
    """Margin of effects that count as none, and this look's share of the error rate of all looks."""

    delta: float
    looks: int
    look_share: float


def _find_rule(
    delta: float, answerable: Sequence[tuple[ComparisonQuery, Sequence[SeriesEffect]]]
) -> _Rule:
    """Find the rule of a comparison: of several campaigns, the one with the smallest share counts."""
    series = [effect.series for _, effects in answerable for effect in effects]
    samples = [sample for sides in series for sample in (*sides.a, *sides.b)]
    strictest = min(samples, key=lambda sample: sample.look_share)
    return _Rule(delta, max(sample.looks for sample in samples), strictest.look_share)


def _judge_effects(
    effects: Sequence[SeriesEffect | PooledEffect], rule: _Rule, adjust: Adjustment
) -> list[Judgement]:
    """Judge the estimates together; a refused one stands outside the family."""
    estimates = [None if effect.refused else effect.estimate for effect in effects]
    answered = [estimate for estimate in estimates if estimate is not None]
    family = iter(judge_family(answered, rule.delta, adjust, rule.look_share))
    return [
        Judgement(effect.refused or Verdict.NOT_ENOUGH)
        if estimate is None
        else _orient_judgement(next(family), effect.headline)
        for effect, estimate in zip(effects, estimates, strict=True)
    ]


def _orient_judgement(judged: Judgement, headline: HeadlineMetric) -> Judgement:
    """Turn the verdict on a metric around if higher values of it are better."""
    turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    if headline.sign > 0 or judged.verdict not in turned:
        return judged
    return replace(judged, verdict=turned[judged.verdict])


@dataclass(frozen=True)
class _Plan:
    """Size of a new campaign that is likely to decide; None where it is not known."""

    jobs: int | None = None
    hosts: int | None = None
    sites: int | None = None


def _plan_series(effect: SeriesEffect, judged: Judgement, delta: float) -> _Plan:
    if judged.verdict is Verdict.NOT_ENOUGH and effect.jobs and effect.missing_jobs:
        return _Plan(jobs=effect.jobs + effect.missing_jobs)
    if judged.verdict not in OPEN_VERDICTS or effect.estimate is None:
        return _Plan()
    if effect.scope == SITE_SCOPE:
        hosts = plan_units(effect.estimate, effect.hosts, judged.planned_level, delta)
        return _Plan(hosts and math.ceil(hosts * effect.jobs / effect.hosts), hosts)
    return _Plan(plan_units(effect.estimate, effect.jobs, judged.planned_level, delta))


def _plan_pooled(effect: PooledEffect, judged: Judgement, delta: float) -> _Plan:
    if judged.verdict not in OPEN_VERDICTS or effect.pooled is None:
        return _Plan()
    estimate = effect.pooled.estimate
    if effect.pooled.tau is None:
        return _Plan(plan_units(estimate, effect.jobs, judged.planned_level, delta))
    sites = plan_units(estimate, effect.pooled.sites, judged.planned_level, delta)
    return _Plan(sites and sites * effect.jobs_per_site, sites=sites)


class _RowBuilder:
    """Makes the store's rows of one comparison."""

    def __init__(
        self, query: ComparisonQuery, now_us: int, contrasts: SiteContrasts, rule: _Rule
    ) -> None:
        self.query = query
        self._now_us = now_us
        self._contrasts = contrasts

        def list_texts(wheres: Sequence[Condition]) -> tuple[str, ...]:
            return tuple(text for where in wheres for text in where.texts)

        self._query_values: dict[str, Any] = {
            "campaigns": query.selection.campaigns,
            "where": list_texts(query.selection.conditions),
            "where_a": list_texts(query.where_a),
            "where_b": list_texts(query.where_b),
            "among": tuple(str(value) for value in query.among),
            "delta": query.delta,
            "looks": rule.looks,
            "look_share": rule.look_share,
        }

    def build_pair_rows(self, effect: SeriesEffect) -> Iterator[PairRow]:
        for pair in effect.pairs:
            yield PairRow(
                comparison_id=self.query.id,
                job_id=pair.job_id,
                campaign_id=pair.campaign_id,
                site=effect.series.site,
                host=pair.host,
                comparison_key=effect.series.key,
                label=effect.series.label,
                metric=effect.metric,
                axis=self.query.axis,
                a=str(self.query.a),
                b=str(self.query.b),
                rounds=pair.rounds,
                a_value=pair.a,
                b_value=pair.b,
                log_ratio=pair.d,
            )

    def build_series_row(
        self, effect: SeriesEffect, judged: Judgement, controls: Sequence[ControlCheck]
    ) -> VerdictRow:
        a_value, b_value = effect.side_means
        plan = _plan_series(effect, judged, self.query.delta)
        evidence = VerdictEvidence(
            remedy=effect.remedy or comparison_notes.REMEDIES.get(judged.verdict, ""),
            test=effect.test_name if effect.estimate else "",
            unpaired=effect.unpaired,
            a_value=a_value,
            b_value=b_value,
            jobs_a=len(effect.pairs or effect.a),
            jobs_b=len(effect.pairs or effect.b),
            cpu_s=effect.cpu_s,
            launches=effect.launches if effect.scope != SITE_SCOPE else 0,
            scatter=effect.find_scatter(controls),
            same_data=effect.data_comparison.value,
            build=effect.build.reasons,
            bundled=effect.build.bundled,
            repackaged=effect.build.repackaged,
            unknown=effect.build.unknown,
            nodes=compare_nodes(effect.series.a, effect.series.b),
            left_out=effect.left_out,
            hosts_needed=plan.hosts,
            site_shift=self._contrasts.shifts.get((effect.metric, effect.series.site), ()),
            servers_a=list_servers(effect.series.a),
            servers_b=list_servers(effect.series.b),
            of_a=common_values(effect.series.a),
            of_b=common_values(effect.series.b),
            **self._describe_effect(effect, judged),
        )
        return self._build_row(
            effect,
            judged,
            evidence,
            scope=effect.scope,
            site=effect.series.site,
            comparison_key=effect.series.key,
            effect=effect.mean,
            jobs_needed=plan.jobs,
        )

    def build_pooled_row(self, effect: PooledEffect, judged: Judgement) -> VerdictRow:
        pooled, estimate = effect.pooled, effect.estimate
        plan = _plan_pooled(effect, judged, self.query.delta)
        is_mean = pooled and pooled.tau is None
        test = "mean of these sites" if is_mean else "Hartung-Knapp, equal weights"
        evidence = VerdictEvidence(
            test=test if pooled else "",
            jobs_a=effect.jobs,
            jobs_b=effect.jobs,
            sites=effect.sites,
            shared_hosts=effect.shared_hosts,
            tau=pooled.tau if pooled else None,
            prediction=(pooled.prediction or ()) if pooled else (),
            sites_needed=plan.sites,
            points_at_change=(effect.series.release, effect.metric) in self._contrasts.slower,
            of_a=effect.of_a,
            of_b=effect.of_b,
            **self._describe_effect(effect, judged),
        )
        return self._build_row(
            effect,
            judged,
            evidence,
            scope=SITES_SCOPE,
            site="",
            comparison_key=effect.series.release,
            effect=estimate.mean if estimate else None,
            jobs_needed=plan.jobs,
        )

    def _describe_effect(
        self, effect: SeriesEffect | PooledEffect, judged: Judgement
    ) -> dict[str, Any]:
        return {
            "why": effect.why,
            "p": effect.estimate.p if effect.estimate else None,
            "p_adjusted": judged.p_adjusted,
            "level": judged.level,
            "unit": effect.headline.unit,
            "better": effect.headline.better,
            "work": effect.headline.work,
            "counted": effect.series.unit,
            **self._query_values,
        }

    def _build_row(
        self,
        measured: SeriesEffect | PooledEffect,
        judged: Judgement,
        evidence: VerdictEvidence,
        **columns: Any,
    ) -> VerdictRow:
        estimate = measured.estimate
        low, high = estimate.interval(judged.level) if estimate else (None, None)
        return VerdictRow(
            comparison_id=self.query.id,
            created_us=self._now_us,
            rule_version=RULE_VERSION,
            label=measured.series.label,
            metric=measured.metric,
            axis=self.query.axis,
            a=str(self.query.a),
            b=str(self.query.b),
            verdict=judged.verdict.value,
            low=low,
            high=high,
            jobs=measured.jobs,
            hosts=measured.hosts,
            evidence=evidence,
            **columns,
        )
