"""Two values of one axis compared: a verdict for every series, and for every release over sites."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treehammer.analysis.comparison import comparison_notes
from treehammer.analysis.comparison.comparability import collect_checksums
from treehammer.analysis.comparison.series_effects import (
    MIN_HOSTS,
    MIN_JOBS,
    SeriesEffect,
    SeriesSides,
    common_values,
    measure_effect,
    split_sides,
)
from treehammer.analysis.comparison.site_pooling import PooledEffect, pool_over_sites
from treehammer.analysis.samples.control_check import ControlCheck, check_controls
from treehammer.analysis.samples.sample import HEADLINE_METRICS, Sample
from treehammer.analysis.statistics.estimates import (
    ALPHA,
    AdjustedTest,
    Estimate,
    adjust_benjamini_hochberg,
    adjust_holm,
    decide_verdict,
    estimate_jobs_needed,
)
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    RELEASE_SCOPE,
    RULE_VERSION,
    SERIES_SCOPE,
    Verdict,
    VerdictEvidence,
)
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.matrix.definition import Scalar
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read.measurement_selection import Condition, Selection


@dataclass(frozen=True)
class ComparisonQuery:
    """Is ``b`` faster or slower than ``a`` on ``axis``, effects within ±delta (in ln) aside?

    ``selection`` is of which measurements, ``where_a`` and ``where_b`` are conditions on one side
    alone; they are part of the identity.
    """

    axis: str
    a: Scalar
    b: Scalar
    delta: float = DEFAULT_DELTA
    selection: Selection = field(default_factory=Selection)
    where_a: tuple[Condition, ...] = ()
    where_b: tuple[Condition, ...] = ()

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
        """Identity of the comparison: asking the same again replaces the answer."""
        parts = [RULE_VERSION, self.axis, self.a, self.b, self.delta, str(self.selection)]
        if self.where_a or self.where_b:
            parts += [[str(where) for where in side] for side in (self.where_a, self.where_b)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: rows for the store, and notes.

    ``verdicts`` holds the series rows first and then the release rows; ``one_host`` says that
    everything compared ran on one and is no more than an illustration.  ``controls`` are the A/A
    launches of the same jobs, by metric.
    """

    query: ComparisonQuery
    pairs: tuple[PairRow, ...]
    verdicts: tuple[VerdictRow, ...]
    one_host: bool
    notes: tuple[str, ...]
    controls: tuple[ControlCheck, ...] = ()

    @property
    def regressed(self) -> bool:
        """Whether anything was found slower beyond doubt."""
        return any(row.verdict == Verdict.SLOWER for row in self.verdicts)

    def verdicts_of_scope(self, scope: str) -> list[VerdictRow]:
        """The verdicts of ``series`` or ``release``."""
        return [row for row in self.verdicts if row.scope == scope]


def compare_samples(
    samples: Iterable[Sample], question: ComparisonQuery, *, now_us: int
) -> Comparison:
    """Compare both sides of ``question``.

    Args:
        samples: timed and checksum executions; others than the question's are ignored.
        question: what is asked.
        now_us: time that the verdicts carry, microseconds since 1970 UTC.

    Raises:
        NothingToDo: no execution of either side recorded a headline metric or a failure.
    """
    samples = list(samples)
    known = collect_checksums(samples)
    found = split_sides(samples, question.axis, question.a, question.b)
    executions = [one for series in found for one in (*series.a, *series.b)]
    effects = [
        measure_effect(series, metric, question.axis, known)
        for series in found
        for metric in HEADLINE_METRICS
        if any(one.failure_class or metric in one.metrics for one in executions)
    ]
    if not effects:
        raise NothingToDoError(
            f"no execution with {question.axis}={question.a} or {question.b} "
            "recorded CPU or wall time per event",
            where="compare",
            hint="A payload without the kit reports cpu_per_event_s and wall_per_event_s itself.",
        )
    rows = _RowBuilder(question, now_us)
    judged = _judge_effects(effects, question.delta)
    releases = [] if question.axis == "site" else pool_over_sites(effects)
    over_sites = _judge_pooled_effects(releases, question.delta)
    verdicts = (
        *(rows.build_series_row(*pair) for pair in zip(effects, judged, strict=True)),
        *(rows.build_release_row(*pair) for pair in zip(releases, over_sites, strict=True)),
    )
    one_host = comparison_notes.is_single_host(effects)
    controls = check_controls(samples, {pair.job_id for one in effects for pair in one.pairs})
    return Comparison(
        query=question,
        pairs=tuple(row for one in effects for row in rows.build_pair_rows(one)),
        verdicts=verdicts,
        one_host=one_host,
        notes=(
            *comparison_notes.control_notes(controls),
            *comparison_notes.comparison_notes(verdicts, one_host=one_host),
        ),
        controls=controls,
    )


@dataclass(frozen=True)
class _Judgement:
    """A verdict; ``adjusted`` is None for a row that stands outside its family of tests.

    ``more`` is the number of jobs (pooled: of sites) still needed, None where that is unknown.
    """

    verdict: Verdict
    adjusted: AdjustedTest | None = None
    more: int | None = None


def _judge_effects(effects: Sequence[SeriesEffect], delta: float) -> list[_Judgement]:
    family = [one.estimate.p for one in effects if one.refused is None and one.estimate]
    adjusted = iter(adjust_benjamini_hochberg(family))
    judged = []
    for one in effects:
        if one.refused is None and one.estimate:
            judged.append(_judge_estimate(one.estimate, one.jobs, next(adjusted), delta))
        else:
            missing = max(MIN_JOBS - one.jobs, MIN_HOSTS - one.hosts)
            counts = one.refused is Verdict.NOT_ENOUGH and missing > 0 and one.jobs > 0
            refused = one.refused or Verdict.NOT_ENOUGH
            judged.append(_Judgement(refused, more=missing if counts else None))
    return judged


def _judge_pooled_effects(releases: Sequence[PooledEffect], delta: float) -> list[_Judgement]:
    family = [one.pooled.estimate.p for one in releases if one.refused is None and one.pooled]
    adjusted = iter(adjust_holm(family))
    judged = []
    for one in releases:
        if one.refused is None and one.pooled:
            judged.append(
                _judge_estimate(one.pooled.estimate, one.pooled.sites, next(adjusted), delta)
            )
        else:
            judged.append(_Judgement(one.refused or Verdict.NOT_ENOUGH))
    return judged


def _judge_estimate(estimate: Estimate, n: int, adjusted: AdjustedTest, delta: float) -> _Judgement:
    verdict = decide_verdict(estimate, adjusted.level, delta)
    undecided = verdict is Verdict.UNDECIDED
    more = estimate_jobs_needed(estimate, n, adjusted.level, delta) if undecided else None
    return _Judgement(verdict, adjusted, more)


def _condition_texts(wheres: Sequence[Condition]) -> tuple[str, ...]:
    return tuple(text for where in wheres for text in where.texts)


class _RowBuilder:
    """Makes the store's rows of one comparison."""

    def __init__(self, question: ComparisonQuery, now_us: int) -> None:
        self._question = question
        self._now_us = now_us
        self._asked: dict[str, Any] = {
            "campaigns": question.selection.campaigns,
            "where": _condition_texts(question.selection.conditions),
            "where_a": _condition_texts(question.where_a),
            "where_b": _condition_texts(question.where_b),
        }

    def build_pair_rows(self, one: SeriesEffect) -> Iterator[PairRow]:
        for pair in one.pairs:
            yield PairRow(
                comparison_id=self._question.id,
                job_id=pair.job_id,
                campaign_id=pair.campaign_id,
                site=one.series.site,
                host=pair.host,
                comparison_key=one.series.key,
                label=one.series.label,
                metric=one.metric,
                axis=self._question.axis,
                a=str(self._question.a),
                b=str(self._question.b),
                rounds=pair.rounds,
                a_value=pair.a,
                b_value=pair.b,
                log_ratio=pair.d,
            )

    def build_series_row(self, one: SeriesEffect, judged: _Judgement) -> VerdictRow:
        a_value, b_value = one.geometric_means
        evidence = VerdictEvidence(
            why=one.why,
            remedy=one.remedy or comparison_notes.REMEDIES.get(judged.verdict, ""),
            power=comparison_notes.power_sentence(judged.verdict, one.metric, self._question.delta),
            test=one.test_name if one.estimate else "",
            unpaired=one.unpaired,
            a_value=a_value,
            b_value=b_value,
            jobs_a=len(one.pairs or one.a),
            jobs_b=len(one.pairs or one.b),
            p=one.estimate.p if one.estimate else None,
            p_adjusted=judged.adjusted.p if judged.adjusted else None,
            level=judged.adjusted.level if judged.adjusted else ALPHA,
            delta=self._question.delta,
            loop_s=one.loop_s,
            same_data=one.data_comparison.value,
            build=one.build.reasons,
            bundled=one.build.bundled,
            repackaged=one.build.repackaged,
            unknown=one.build.unknown,
            left_out=one.left_out,
            **self._asked,
            of_a=common_values(one.series.a),
            of_b=common_values(one.series.b),
        )
        return self._build_row(
            SERIES_SCOPE,
            one.series,
            one.metric,
            judged,
            one.estimate,
            evidence,
            site=one.series.site,
            effect=one.mean,
            jobs=one.jobs,
            hosts=one.hosts,
        )

    def build_release_row(self, one: PooledEffect, judged: _Judgement) -> VerdictRow:
        estimate = one.pooled.estimate if one.pooled else None
        evidence = VerdictEvidence(
            why=one.why,
            test="random effects over sites, Hartung-Knapp" if estimate else "",
            jobs_a=one.jobs,
            jobs_b=one.jobs,
            p=estimate.p if estimate else None,
            p_adjusted=judged.adjusted.p if judged.adjusted else None,
            level=judged.adjusted.level if judged.adjusted else ALPHA,
            delta=self._question.delta,
            sites=one.sites,
            tau=one.pooled.tau if one.pooled else None,
            sites_needed=judged.more,
            **self._asked,
            of_a=one.of_a,
            of_b=one.of_b,
        )
        more = judged.more
        return self._build_row(
            RELEASE_SCOPE,
            one.series,
            one.metric,
            replace(judged, more=None if more is None else more * max(one.jobs_per_site, MIN_JOBS)),
            estimate,
            evidence,
            site="",
            effect=estimate.mean if estimate else None,
            jobs=one.jobs,
            hosts=one.hosts,
        )

    def _build_row(
        self,
        scope: str,
        series: SeriesSides,
        metric: str,
        judged: _Judgement,
        estimate: Estimate | None,
        evidence: VerdictEvidence,
        *,
        site: str,
        effect: float | None,
        jobs: int,
        hosts: int,
    ) -> VerdictRow:
        low, high = estimate.interval(evidence.level or ALPHA) if estimate else (None, None)
        return VerdictRow(
            comparison_id=self._question.id,
            created_us=self._now_us,
            rule_version=RULE_VERSION,
            scope=scope,
            site=site,
            comparison_key=series.key if scope == SERIES_SCOPE else series.release,
            label=series.label,
            metric=metric,
            axis=self._question.axis,
            a=str(self._question.a),
            b=str(self._question.b),
            verdict=judged.verdict.value,
            effect=effect,
            low=low,
            high=high,
            jobs=jobs,
            hosts=hosts,
            jobs_needed=judged.more,
            evidence=evidence.to_json(),
        )
