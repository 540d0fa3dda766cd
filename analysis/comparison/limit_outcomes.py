"""Limits that a test states, judged on the measurements of a campaign.

A limit is kept or missed where the interval of the mean, or of the ratio to the base, lies entirely on
one side of it, and undecided where the interval contains it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from statistics import fmean

from treehammer.analysis.comparison.series_effects import (
    SeriesEffect,
    explain_few_units,
    measure_effect,
)
from treehammer.analysis.comparison.series_sides import (
    ChecksumsBySlot,
    collect_checksums,
    label_series,
    split_sides,
)
from treehammer.analysis.statistics.estimates import (
    MIN_SPREAD,
    Estimate,
    adjust_benjamini_hochberg,
    adjust_for_looks,
    estimate_over_hosts,
    has_enough_jobs,
)
from treehammer.analysis.statistics.headline_rows import find_look_share, load_metric_rows
from treehammer.analysis.statistics.job_pairs import select_last_attempts
from treehammer.analysis.statistics.sample import (
    HEADLINE_METRICS,
    SAMPLE_COLUMNS,
    Sample,
    assign_compilers,
    comparison_key,
    natural_sort_key,
    unify_hosts,
)
from treehammer.analysis.statistics.verdict import ABSENT_VERDICTS, ALPHA, Verdict
from treehammer.collectors.job_spec import PAIRED, TIMED
from treehammer.collectors.record.metric_catalogue import COUNTER_NAMES
from treehammer.errors import ExitCode
from treehammer.hctests.definition.judged_metrics import (
    AT_MOST,
    ExpectTable,
    HeadlineMetric,
    find_numeric_metric,
)
from treehammer.hctests.definition.model import COMMIT_AXIS, Scalar, format_commit
from treehammer.sql.core.campaign_plan import PlannedDefinition
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import MeasurementCount, count_campaign
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import format_counts


class LimitState(StrEnum):
    """Outcomes of a limit, the worst first."""

    MISSED = "missed"
    NOT_JUDGED = "not judged"
    UNDECIDED = "undecided"
    KEPT = "kept"


@dataclass(frozen=True)
class LimitOutcome:
    """Outcome of one bound for one variant at one site.

    Attributes:
        metric: name of the metric.
        unit: its unit; ``1`` for counts and ratios.
        kind: ``at_most`` or ``at_least``.
        bound: in the metric's unit; with a base a multiple of its value.
        base: ``AXIS=VALUE`` of the base, commits shortened; '' for an absolute bound.
        site: name of the site; '' where nothing was measured anywhere.
        label: shortest distinguishing label of the variant.
        state: the outcome.
        value: mean over hosts, with a base the ratio to it; None where nothing was measured.
        low, high: interval of ``value`` at ``level``, its error rate; None without one.
        units: jobs, or launches in paired mode, that the value is a mean of.
        hosts: known hosts on which they ran.
        why: reason why it was not judged.
    """

    metric: str
    unit: str
    kind: str
    bound: float
    base: str
    site: str
    label: str
    state: LimitState = LimitState.NOT_JUDGED
    value: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    units: int = 0
    hosts: int = 0
    why: str = ""


@dataclass(frozen=True)
class LimitReport:
    """Outcomes of the limits of a campaign.

    Attributes:
        campaign: the campaign.
        count: its planned and recorded measurements.
        outcomes: one for each bound, variant and site; empty if the test states no limit.
    """

    campaign: CampaignRow
    count: MeasurementCount
    outcomes: tuple[LimitOutcome, ...]

    @property
    def unmeasured(self) -> int:
        """Planned measurements that are not in the database."""
        return max(self.count.planned - self.count.measured, 0)

    @property
    def exit_code(self) -> ExitCode:
        """1 if a limit is missed, 3 if one is not judged, none is stated or measurements are not there, else 0."""
        states = {outcome.state for outcome in self.outcomes}
        if LimitState.MISSED in states:
            return ExitCode.REGRESSION
        is_partial = LimitState.NOT_JUDGED in states or not states or self.unmeasured
        return ExitCode.NOTHING if is_partial else ExitCode.DONE

    def count_states(self) -> str:
        """Count the outcomes by state, the worst first: ``1 missed, 3 kept``."""
        counts = Counter(outcome.state for outcome in self.outcomes)
        return format_counts({state.value: counts[state] for state in LimitState if counts[state]})


def judge_limits(store: ResultsReader, campaign: CampaignRow, now_us: int) -> LimitReport:
    """Judge the limits that a campaign's test stated when it was submitted.

    Args:
        store: the database.
        campaign: the campaign.
        now_us: current time, microseconds since 1970 UTC.
    """
    plan, definition = campaign.plan, campaign.plan.definition
    limits: list[tuple[ExpectTable, HeadlineMetric]] = []
    for limit in definition.limits:
        # This version may not know the metric of a stored definition.
        with suppress(KeyError, ValueError):
            is_load = definition.load is not None
            metric = find_numeric_metric(limit.metric, definition.own_metrics, is_load=is_load)
            limits.append((limit, metric))
    count = count_campaign(store, campaign.id, now_us).total
    if not limits:
        return LimitReport(campaign, count, ())
    metrics = tuple(dict.fromkeys(metric for _, metric in limits))
    rows = load_metric_rows(store, Selection((campaign.id,)), SAMPLE_COLUMNS, metrics)
    # A limit speaks of this campaign's load, of which each job is a part.
    own_jobs = {"start_planned_us": None}
    tested = [{**row, **own_jobs} for row in rows if row["test_name"] == campaign.test_name]
    samples = assign_compilers(unify_hosts(map(Sample.from_row, tested)))
    limited = _LimitedCampaign(definition, samples)
    planned = {*(plan.runners or plan.sites)} - {*plan.excluded}
    sites = sorted(planned | {sample.site for sample in samples}, key=natural_sort_key)
    pending = [item for limit, metric in limits for item in limited.measure(limit, metric, sites)]
    share = find_look_share(plan.until_decided, rows)
    return LimitReport(campaign, count, tuple(_judge_outcomes(pending, share)))


@dataclass(frozen=True)
class _PendingOutcome:
    """An outcome to judge, with its estimate: of value / scale, or of ln(value) without a scale.

    Without an estimate the outcome is final.
    """

    outcome: LimitOutcome
    estimate: Estimate | None = None
    scale: float | None = None

    @property
    def target(self) -> float:
        """The bound on the scale of the estimate."""
        bound = self.outcome.bound
        return math.log(bound) if self.scale is None else bound / self.scale

    def restore(self, number: float) -> float:
        """Convert a number on the scale of the estimate to the outcome's."""
        return math.exp(number) if self.scale is None else number * self.scale


class _LimitedCampaign:
    """Measurements of one campaign that limits are judged on."""

    def __init__(self, definition: PlannedDefinition, samples: Sequence[Sample]) -> None:
        self._axes, self._bundle = definition.axes, definition.bundle
        self._is_paired = definition.mode == PAIRED
        self._timed = [sample for sample in samples if sample.kind == TIMED]
        self._checksums: ChecksumsBySlot = collect_checksums(samples)
        self._has_rules = bool(definition.exclude or definition.include)
        self._exact = {*COUNTER_NAMES, *definition.exact_metrics}

    def measure(
        self, limit: ExpectTable, metric: HeadlineMetric, sites: Sequence[str]
    ) -> Iterator[_PendingOutcome]:
        """Measure everything that a limit holds for; name what is missing at other sites."""
        axis, base = limit.resolve_base(self._axes, self._bundle)
        if axis:
            pending = [*self._compare_with_base(limit, metric, axis, base)]
        else:
            pending = [*self._measure_means(limit, metric)]
        yield from pending
        judged = {item.outcome.site for item in pending}
        named_base = _name_value(axis, base) if axis else ""
        for site in (site for site in sites or [""] if site not in judged):
            why = self._explain_absence(limit, named_base, site)
            for kind, bound in limit.list_bounds(site):
                outcome = LimitOutcome(limit.metric, metric.unit, kind, bound, named_base, site, "")
                yield _PendingOutcome(replace(outcome, why=why))

    def _explain_absence(self, limit: ExpectTable, base: str, site: str) -> str:
        """Explain that a limit holds for no measurement of a site."""
        if site not in {sample.site for sample in self._timed}:
            return "no measurement"
        selected = " ".join(_name_value(axis, value) for axis, value in limit.where.items())
        if not base and not selected:  # absolute limits do not hold for the first commit
            base = _name_value(COMMIT_AXIS, self._axes[COMMIT_AXIS][0])
        words = ["nothing was measured", selected and f"with {selected}", base and f"beside {base}"]
        return " ".join(filter(None, words))

    def _select(self, where: Mapping[str, Scalar], without: str = "") -> list[Sample]:
        conditions = [(axis, value) for axis, value in where.items() if axis != without]
        return [
            sample
            for sample in self._timed
            if all(sample.axis_value(axis) == value for axis, value in conditions)
        ]

    def _label_variants(self, axis: str) -> dict[str, str]:
        """Map comparison keys to labels without the name of the test, which all have."""
        labels = label_series(self._timed, axis)
        name = self._timed[0].test_name if self._timed else ""
        return {key: label.removeprefix(name).lstrip() for key, label in labels.items()}

    def _measure_means(
        self, limit: ExpectTable, metric: HeadlineMetric
    ) -> Iterator[_PendingOutcome]:
        # The first of the compared commits is the base: its own means are not judged.
        earlier, *later = self._axes.get(COMMIT_AXIS, ("",))
        axis = COMMIT_AXIS if later else ""
        labels = self._label_variants(axis)
        groups: dict[str, list[Sample]] = defaultdict(list)
        for sample in self._select(limit.where):
            if not axis or sample.axis_value(axis) != earlier:
                groups[comparison_key(sample, "")].append(sample)
        for group in groups.values():
            site, label = group[0].site, labels[comparison_key(group[0], axis)]
            if axis:
                label = f"{label} {_name_value(axis, group[0].axis_value(axis))}".lstrip()
            values = self._collect_values(group, metric.name)
            for kind, bound in limit.list_bounds(site):
                outcome = LimitOutcome(metric.name, metric.unit, kind, bound, "", site, label)
                yield self._estimate_mean(outcome, values, group)

    def _collect_values(self, group: Iterable[Sample], metric: str) -> dict[str, list[float]]:
        """Collect one value of each job, or launch in paired mode, by host."""
        usable = [
            sample
            for sample in group
            if not sample.failure_class
            and sample.plausible
            and math.isfinite(sample.metrics.get(metric, math.nan))
        ]
        by_host: dict[str, list[float]] = defaultdict(list)
        jobs = select_last_attempts(usable, lambda sample: sample.unit)
        for executions in jobs.values():
            values = [float(sample.metrics[metric]) for sample in executions]
            host = min(sample.host for sample in executions)
            by_host[host] += values if self._is_paired else [fmean(values)]
        return by_host

    def _estimate_mean(
        self, outcome: LimitOutcome, by_host: Mapping[str, Sequence[float]], group: Sequence[Sample]
    ) -> _PendingOutcome:
        values = list(chain.from_iterable(by_host.values()))
        if not values:
            return _PendingOutcome(replace(outcome, why=_explain_unusable(group, outcome.metric)))
        outcome = replace(
            outcome,
            value=fmean(map(fmean, by_host.values())),
            units=len(values),
            hosts=sum(map(bool, by_host)),
        )
        scale = abs(outcome.bound) or max(map(abs, values)) or 1.0
        scaled = {host: [value / scale for value in of_host] for host, of_host in by_host.items()}
        is_equal = max(values) - min(values) <= MIN_SPREAD * scale
        enough = has_enough_jobs([*map(len, by_host.values())])
        if is_equal and (outcome.metric in self._exact or enough):
            return _PendingOutcome(_decide_exactly(outcome, values[0]))
        if enough and (estimate := estimate_over_hosts(scaled)):
            return _PendingOutcome(outcome, estimate, scale)
        why = "no interval: all values of a host, or means of hosts, are equal"
        if not enough:
            unit = "launch" if self._is_paired else "job"
            why = "; ".join(explain_few_units(outcome.units, unit)[1:])
        return _PendingOutcome(replace(outcome, why=why))

    def _compare_with_base(
        self, limit: ExpectTable, metric: HeadlineMetric, axis: str, base: Scalar
    ) -> Iterator[_PendingOutcome]:
        samples = self._select(limit.where, axis)
        measured = {value for sample in samples if (value := sample.axis_value(axis)) is not None}
        compared_values = {*self._axes.get(axis, ()), *measured} - {base}
        labels, named_base = self._label_variants(axis), _name_value(axis, base)
        for value in sorted(compared_values, key=natural_sort_key):
            if limit.where.get(axis, value) != value:
                continue
            for series in split_sides(samples, axis, base, value):
                if not series.b and self._has_rules:
                    continue  # [[exclude]] or [[include]] may have planned the base alone
                effect = measure_effect(series, metric, axis, self._checksums)
                other = _name_value(axis, value)
                label = f"{labels[series.key]} {other}".lstrip()
                for kind, bound in limit.list_bounds(series.site):
                    outcome = LimitOutcome(
                        metric.name, metric.unit, kind, bound, named_base, series.site, label
                    )
                    yield self._estimate_ratio(outcome, effect, other)

    def _estimate_ratio(
        self, outcome: LimitOutcome, effect: SeriesEffect, other: str
    ) -> _PendingOutcome:
        outcome = replace(
            outcome,
            value=None if effect.mean is None else math.exp(effect.mean),
            units=effect.launches or effect.jobs,
            hosts=effect.hosts,
        )
        if effect.refused in ABSENT_VERDICTS:
            absent = outcome.base if effect.refused is Verdict.ONLY_IN_B else other
            return _PendingOutcome(replace(outcome, why=f"nothing was measured with {absent}"))
        ratio = self._find_exact_ratio(effect)
        if ratio is not None:
            return _PendingOutcome(_decide_exactly(outcome, ratio))
        if effect.refused is not None:
            remedy = f"; {effect.remedy}" if effect.remedy else ""
            return _PendingOutcome(replace(outcome, why=f"{effect.why}{remedy}"))
        return _PendingOutcome(outcome, effect.estimate)

    def _find_exact_ratio(self, effect: SeriesEffect) -> float | None:
        """Return the ratio of values that are equal in all jobs; None for others, and for clocks."""
        enough = effect.metric in self._exact or not effect.missing_jobs
        is_zero = f"{effect.metric} is not above 0" in effect.left_out
        is_time = effect.metric in HEADLINE_METRICS
        if effect.refused is not Verdict.NOT_ENOUGH or not enough or is_zero or is_time:
            return None
        a, b = effect.side_values
        if not all(side and max(side) - min(side) <= MIN_SPREAD * max(side) for side in (a, b)):
            return None
        return b[0] / a[0]


def _name_value(axis: str, value: Scalar | None) -> str:
    return f"{axis}={format_commit(str(value)) if axis == COMMIT_AXIS else value}"


def _explain_unusable(group: Sequence[Sample], metric: str) -> str:
    """Say why no execution of a group has a usable value."""
    reasons = Counter(
        f"failed: {sample.failure_class}"
        if sample.failure_class
        else f"no {metric}"
        if sample.plausible
        else "implausible"
        for sample in group
    )
    return f"no usable execution ({', '.join(f'{name} {n}' for name, n in reasons.items())})"


def _decide_exactly(outcome: LimitOutcome, value: float) -> LimitOutcome:
    """Decide about values without any spread: the value itself is the interval."""
    is_kept = value <= outcome.bound if outcome.kind == AT_MOST else value >= outcome.bound
    state = LimitState.KEPT if is_kept else LimitState.MISSED
    return replace(outcome, state=state, value=value, low=value, high=value, level=0.0)


def _judge_outcomes(pending: Sequence[_PendingOutcome], share: float) -> list[LimitOutcome]:
    """Judge all limits of a campaign together, as compare judges its site rows.

    The interval excludes the limit exactly when the adjusted test of 'equals the limit' rejects. A
    campaign that ends when it is decided shares the error rate over its looks.
    """
    shifted = [
        replace(item.estimate, mean=item.estimate.mean - item.target)
        for item in pending
        if item.estimate is not None
    ]
    adjusted = adjust_for_looks([item.p for item in shifted], adjust_benjamini_hochberg, share)
    tests = iter(zip(shifted, adjusted, strict=True))
    outcomes = []
    for item in pending:
        if item.estimate is None:
            outcomes.append(item.outcome)
            continue
        distance, test = next(tests)
        is_kept = (distance.mean < 0) == (item.outcome.kind == AT_MOST)
        state = LimitState.KEPT if is_kept else LimitState.MISSED
        low, high = map(item.restore, item.estimate.interval(test.level))
        outcomes.append(
            replace(
                item.outcome,
                state=state if test.p <= ALPHA else LimitState.UNDECIDED,
                value=item.restore(item.estimate.mean),
                low=low,
                high=high,
                level=test.level,
            )
        )
    return outcomes
