"""Texts of figures: headings, captions, selections and notes on omitted data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.read.query_model import Condition
from treehammer.web.figures.explore_query import ExploreQuery, View
from treehammer.web.figures.figure_points import FigurePoint
from treehammer.web.labels import VARIANT_COLUMN, describe_variant, head_column, title_column

_EXCLUDED_NOTE = (
    "Failed, implausible and unsupported executions are counted in the table, but never averaged."
)


def figure_heading(query: ExploreQuery) -> str:
    """Return the short heading of a figure."""
    subject = head_column(query.metric)
    if query.view == View.RELATIVE:
        subject += " against the same work"
    panels = f", for each {title_column(query.panels)}" if query.panels else ""
    names = [title_column(name) for name in (query.by, query.color) if name]
    return f"{subject} by {' and '.join(names)}{panels}"


def describe_metric(query: ExploreQuery) -> str:
    """Return the meaning of the metric, as a sentence."""
    metric = METRICS_BY_NAME.get(query.metric)
    if metric is None:
        return f"{head_column(query.metric)}, a metric defined by the test."
    better = f" {metric.better.capitalize()} is better." if metric.better else ""
    return f"{metric.meaning}{better}"


def describe_selection(query: ExploreQuery, points: Sequence[FigurePoint]) -> str:
    """Describe the selected days, conditions, campaigns and kind, and the number of executions."""
    number = sum(point.number for point in points)
    days = (
        f"from {query.first}" if query.first else f"to {query.last}" if query.last else "all days"
    )
    parts = [
        f"{query.first} to {query.last}" if query.first and query.last else days,
        *map(_describe_condition, query.conditions),
        *(f"campaign {name}" for name in query.campaign_names),
        f"{query.kind} executions" if query.kind else "executions of all kinds",
        f"n = {number:,}",
    ]
    return "; ".join(parts)


def _describe_condition(where: Condition) -> str:
    if where.column != VARIANT_COLUMN or where.operator not in ("=", "!="):
        return str(where)
    texts = " or ".join(describe_variant(str(value or "")) or "–" for value in where.values)
    return f"variant {texts}" if where.operator == "=" else f"no variant {texts}"


def describe_groups(query: ExploreQuery) -> str:
    """Explain how each group is drawn."""
    return f"{_GROUP_CAPTIONS.get(query.view, _MEANS_CAPTION)} {_EXCLUDED_NOTE}"


def describe_bars(query: ExploreQuery) -> str:
    """Return the short description of points and error bars."""
    return _BAR_CAPTIONS.get(query.view, "means, error bars: RMS of executions")


def explain_empty_figure(query: ExploreQuery, points: Sequence[FigurePoint]) -> str:
    """Explain why a figure with groups has nothing to draw."""
    good = sum(point.good for point in points)
    if not good:
        return "Nothing to draw: no selected execution is good."
    return f"Nothing to draw: no selected good execution recorded {title_column(query.metric)}."


_GROUP_CAPTIONS: Mapping[str, str] = {
    View.HEATMAP: "Each cell is the mean over the executions of a group, colored by its difference from the "
    "median of its row, unless means are zero or negative; cells without good executions are empty.",
    View.RELATIVE: "Each kind of work (test, variant, ROOT release, dataset, protocol) is compared with the "
    "median over all sites of its means in these days, and counts once. Points and works are fitted "
    "together, so another mix of work is no change; points that share no work are not connected. "
    "What the figure itself compares, such as releases, is not part of the work. RMS bars are the "
    "scatter of executions around the mean of their own work.",
}
_MEANS_CAPTION = "Points are means over executions, error bars their RMS around the mean; single executions have no bar."
_BAR_CAPTIONS: Mapping[str, str] = {
    View.HEATMAP: "means of executions",
    View.RELATIVE: "differences from the median of the same work at all sites",
}
