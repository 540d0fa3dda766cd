"""Judgement of published results: the ratio that a campaign measured, beside the one in print."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import methodcaller
from typing import Any

from treehammer.analysis.comparison.comparison_result import CampaignVerdict, judge_campaign
from treehammer.analysis.comparison.series_changes import DETAIL_COLUMNS
from treehammer.analysis.statistics.distributions import student_quantile
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.verdict import MIN_JOBS, Verdict
from treehammer.collectors.job_spec import CHECKSUM, TIMED
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.hctests.definition.model import Scalar
from treehammer.reproduce.published_result import CAMPAIGN_PREFIX, PublishedResult, QuantityTable
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX
from treehammer.sql.core.rows import CampaignRow, VerdictRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


class Agreement(StrEnum):
    """What a measurement says about a published result."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNJUDGED = "cannot be judged here"


class UnmeasuredError(Exception):
    """A campaign does not have the ratio; the message says why."""


@dataclass(frozen=True)
class MeasuredRatio:
    """A ratio with its interval: of a verdict, of 95 % for a slope, else the smallest and largest ratio.

    ``measurements`` is the smaller number of both sides where the interval holds all.
    """

    value: float
    low: float
    high: float
    measurements: int = field(default=MIN_JOBS, compare=False)


@dataclass(frozen=True)
class Reproduction:
    """A published result beside what was measured here.

    Attributes:
        campaign: identity of the campaign that measured it; '' for none.
        measured: the ratio; None if there is none.
        reason: why it cannot be judged, or what differs; '' if it agrees.
    """

    result: PublishedResult
    agreement: Agreement
    campaign: str = ""
    measured: MeasuredRatio | None = None
    reason: str = ""

    def to_row(self) -> dict[str, Any]:
        """Return the row of its table."""
        published, measured = self.result.published, self.measured
        low, high = self.result.bounds
        return {
            "name": self.result.name,
            "title": published.title,
            "source": published.source,
            "exact": published.is_exact,
            "published_low": published.ratio[0],
            "published_high": published.ratio[1],
            "agrees_low": low,
            "agrees_high": high,
            "measured": measured and measured.value,
            "low": measured and measured.low,
            "high": measured and measured.high,
            "verdict": self.agreement.value,
            "reason": self.reason,
            "campaign": self.campaign,
        }


def judge(store: Store, result: PublishedResult, campaign: CampaignRow) -> Reproduction:
    """Judge a result by the measurements of a campaign."""
    try:
        measured = measure_ratio(store, result.quantity, campaign)
    except UnmeasuredError as error:
        return Reproduction(result, Agreement.UNJUDGED, campaign.id, reason=str(error))
    agreement, reason = compare_with_print(result, measured)
    return Reproduction(result, agreement, campaign.id, measured, reason)


def compare_with_print(result: PublishedResult, measured: MeasuredRatio) -> tuple[Agreement, str]:
    """Compare a measured ratio with the published range and its tolerance."""
    low, high = result.bounds
    if measured.measurements < MIN_JOBS and not result.published.is_exact:
        return Agreement.UNJUDGED, f"of what scatters, {MIN_JOBS} measurements are needed"
    if measured.low > high or measured.high < low:
        side = "above" if measured.low > high else "below"
        bounds = f"{low:.3g} to {high:.3g}" if high > low else f"{low:.3g}"
        return Agreement.DIFFERS, f"{measured.value:.3g} lies {side} {bounds}"
    if low <= measured.low and measured.high <= high:
        return Agreement.AGREES, ""
    bound = low if measured.low < low else high
    return Agreement.UNJUDGED, f"the interval contains the bound {bound:.3g}"


def load_latest(store: Store, results: Sequence[PublishedResult]) -> Iterator[Reproduction]:
    """Judge each result by its newest campaign in the database."""
    campaigns: dict[str, CampaignRow] = {}
    for campaign in store.campaigns():  # the newest first
        if campaign.name.startswith(CAMPAIGN_PREFIX):
            campaigns.setdefault(campaign.name, campaign)
    for result in results:
        if result.campaign_name in campaigns:
            yield judge(store, result, campaigns[result.campaign_name])
        else:
            yield Reproduction(result, Agreement.UNJUDGED, reason="it was not measured yet")


def measure_ratio(store: Store, quantity: QuantityTable, campaign: CampaignRow) -> MeasuredRatio:
    """Compute the ratio of a quantity from a campaign.

    Raises:
        UnmeasuredError: the campaign lacks what it needs.
    """
    if quantity.kind == "effect":
        return _measure_effect(store, quantity, campaign)
    rows = _load_rows(store, quantity, campaign)
    if quantity.kind == "same":
        return _compare_texts(quantity, rows, campaign.plan.definition.axes)
    measures = {"count": _divide_counts, "quotient": _divide_metrics, "slope": _measure_slope}
    return measures[quantity.kind](quantity, rows)


def _measure_effect(store: Store, quantity: QuantityTable, campaign: CampaignRow) -> MeasuredRatio:
    rows = load_headline_rows(store, Selection((campaign.id,)), DETAIL_COLUMNS)
    axes = {quantity.axis: (quantity.a, quantity.b)}
    row = _find_verdict(judge_campaign(store, campaign, rows, axes=axes), quantity.metric)
    if row.effect is None or row.low is None or row.high is None:
        raise UnmeasuredError("too few launches for an interval")
    if not Verdict(row.verdict).is_statistical:
        reasons = filter(None, (row.verdict, row.evidence.why))
        raise UnmeasuredError(": ".join(reasons))
    return MeasuredRatio(math.exp(row.effect), math.exp(row.low), math.exp(row.high))


def _find_verdict(verdict: CampaignVerdict, metric: str) -> VerdictRow:
    """Find the only verdict of a campaign on a metric."""
    verdicts = [
        row
        for result in verdict.results
        for row in result.comparison.verdicts
        if row.metric == metric and row.effect is not None
    ]
    if not verdicts:
        problems = "; ".join(map(methodcaller("rstrip", "."), verdict.problems))
        raise UnmeasuredError(problems or "too little was measured")
    if len(verdicts) > 1:
        raise UnmeasuredError(f"{len(verdicts)} variants or sites have a verdict each")
    return verdicts[0]


def _load_rows(
    store: Store, quantity: QuantityTable, campaign: CampaignRow
) -> list[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Load the good measurements that a quantity selects, with their variants.

    They are timed, but for a checksum of values, which an execution of its own computes.
    """
    names = {quantity.metric, quantity.divisor, *({quantity.axis} & METRICS_BY_NAME.keys())} - {""}
    extra_names = {name for name in names if name.startswith(EXTRA_PREFIX)}
    columns = (
        "measurement_id",
        "job_id",
        "variant",
        "dataset",
        *names - extra_names,
        *OUTCOME_COLUMNS,
    )
    kind = CHECKSUM if quantity.metric == "value_checksum" else TIMED
    selection = Selection.parse((campaign.id,), [f"kind={kind}"])
    extras: dict[str, dict[str, float]] = defaultdict(dict)
    if extra_names:
        for extra in store.extras(selection):
            extras[extra.measurement_id][EXTRA_PREFIX + extra.name] = extra.value
    rows: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
    for measurement in store.measurements(selection, tuple(dict.fromkeys(columns))):
        # The dataset is no part of the variant where each has jobs of its own.
        variant = {"dataset": measurement["dataset"], **json.loads(str(measurement["variant"]))}
        missing = dict.fromkeys(extra_names)
        row = {**measurement, **missing, **extras[str(measurement["measurement_id"])]}
        is_selected = all(str(variant.get(axis)) == value for axis, value in quantity.where.items())
        if is_selected and classify_outcome(row) is Outcome.GOOD:
            rows.append((variant, row))
    _require_metrics(rows, names)
    return rows


def _require_metrics(
    rows: Sequence[tuple[Mapping[str, Any], dict[str, Any]]], names: Iterable[str]
) -> None:
    """Refuse measurements if there are none, or if none has one of some metrics."""
    if not rows:
        raise UnmeasuredError("no measurement is good")
    for name in sorted(names):
        if all(row[name] is None for _, row in rows):
            raise UnmeasuredError(f"no measurement has {name}")


def _collect_sides(
    quantity: QuantityTable, rows: Sequence[tuple[Mapping[str, Any], dict[str, Any]]]
) -> tuple[list[Any], list[Any]]:
    """Collect the values of a metric on both sides."""
    values = _collect_values(quantity, rows)
    for side in (quantity.a, quantity.b):
        if not values[side]:
            raise UnmeasuredError(f"nothing was measured with {quantity.axis}={side}")
    return values[quantity.a], values[quantity.b]


def _collect_values(
    quantity: QuantityTable, rows: Sequence[tuple[Mapping[str, Any], dict[str, Any]]]
) -> dict[str, list[Any]]:
    """Collect the values of a metric by the value of the axis."""
    values: dict[str, list[Any]] = defaultdict(list)
    for variant, row in rows:
        if row[quantity.metric] is not None:
            values[str(variant.get(quantity.axis))].append(row[quantity.metric])
    return values


def _compare_texts(
    quantity: QuantityTable,
    rows: Sequence[tuple[Mapping[str, Any], dict[str, Any]]],
    planned_axes: Mapping[str, Sequence[Scalar]],
) -> MeasuredRatio:
    texts = _collect_values(quantity, rows)
    for value in planned_axes.get(quantity.axis, ()):
        if str(value) not in texts:
            raise UnmeasuredError(f"nothing was measured with {quantity.axis}={value}")
    if len(texts) < 2:
        raise UnmeasuredError(f"one value of {quantity.axis} cannot be compared")
    share = float(len({text for group in texts.values() for text in group}) == 1)
    return MeasuredRatio(share, share, share)


def _divide_counts(
    quantity: QuantityTable, rows: Sequence[tuple[Mapping[str, Any], dict[str, Any]]]
) -> MeasuredRatio:
    a, b = _collect_sides(quantity, rows)
    a_low, a_high, b_low, b_high = min(a), max(a), min(b), max(b)
    if a_low <= 0:
        raise UnmeasuredError(f"{quantity.metric} is 0 with {quantity.axis}={quantity.a}")
    middle = statistics.median(b) / statistics.median(a)
    return MeasuredRatio(middle, b_low / a_high, b_high / a_low, min(len(a), len(b)))


def _divide_metrics(
    quantity: QuantityTable, rows: Sequence[tuple[Mapping[str, Any], dict[str, Any]]]
) -> MeasuredRatio:
    ratios = [
        row[quantity.metric] / row[quantity.divisor]
        for _, row in rows
        if row[quantity.metric] is not None and row[quantity.divisor]
    ]
    if not ratios:
        raise UnmeasuredError(f"{quantity.divisor} is 0 or unknown")
    return MeasuredRatio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def _measure_slope(
    quantity: QuantityTable, rows: Sequence[tuple[Mapping[str, Any], dict[str, Any]]]
) -> MeasuredRatio:
    """Fit a straight line of the metric over the axis, divided by the divisor's mean.

    The executions of a variant in one job share its node and hour: they are one point, their mean.
    """
    executions: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for variant, row in rows:
        value = variant.get(quantity.axis, row.get(quantity.axis))
        if value is not None and row[quantity.metric] is not None:
            point = (quantity.scale * float(value), float(row[quantity.metric]))
            executions[row["job_id"], json.dumps(variant, sort_keys=True)].append(point)
    points = [
        tuple(map(statistics.fmean, zip(*group, strict=True))) for group in executions.values()
    ]
    if len({x for x, _ in points}) < 2:
        raise UnmeasuredError(f"one value of {quantity.axis} has no slope")
    xs, ys = zip(*points, strict=True)
    divisor = statistics.fmean(
        float(row[quantity.divisor]) for _, row in rows if row[quantity.divisor] is not None
    )
    if not divisor:
        raise UnmeasuredError(f"{quantity.divisor} is 0")
    if len(points) < 3:
        raise UnmeasuredError("two variants, or jobs of them, have no interval of their slope")
    slope, error = _fit_slope(xs, ys)
    ratio, width = slope / divisor, error / divisor
    return MeasuredRatio(ratio, ratio - width, ratio + width)


def _fit_slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Fit a straight line; return its slope with half the width of the 95 % interval."""
    slope, start = statistics.linear_regression(xs, ys)
    df = len(xs) - 2
    rest = math.fsum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True)) / df
    spread = math.fsum((x - statistics.fmean(xs)) ** 2 for x in xs)
    return slope, student_quantile(df, 0.025) * math.sqrt(rest / spread)
