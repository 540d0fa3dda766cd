"""A figure in words: its heading, what it is of, what its points and bars are, what was left out."""

from __future__ import annotations

from collections.abc import Sequence

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.read.measurement_selection import Condition
from treehammer.web.display.display_units import DisplayUnit
from treehammer.web.display.variant_labels import VARIANT_COLUMN, describe_variant
from treehammer.web.figures.explore_query import (
    DISTRIBUTION,
    INTERVAL,
    LATENCY,
    NO_BARS,
    RMS,
    ExploreQuery,
)
from treehammer.web.figures.figure_points import FigurePoint

_EXCLUDED_NOTE = (
    "Executions that failed, cannot be true or are not supported are counted in the table and never "
    "averaged."
)


def figure_heading(asked: ExploreQuery) -> str:
    """The figure in a few words."""
    what = "Read latency" if asked.view == LATENCY else asked.metric
    each = f", for each {asked.panels}" if asked.panels else ""
    return f"{what} by {' and '.join(name for name in (asked.by, asked.colour) if name)}{each}"


def describe_metric(asked: ExploreQuery) -> str:
    """What is measured, in a sentence."""
    if asked.view == LATENCY:
        return "How long single reads took, of all good executions that were measured so."
    metric = METRICS_BY_NAME.get(asked.metric)
    if metric is None:
        return f"{asked.metric}, which a test defines."
    better = f" {metric.better.capitalize()} is better." if metric.better else ""
    return f"{asked.metric}: {metric.meaning}{better}"


def describe_selection(asked: ExploreQuery, points: Sequence[FigurePoint]) -> str:
    """Which executions a figure is of: days, conditions, campaigns, kind, and how many these are."""
    number = sum(point.number for point in points)
    said = [
        describe_window(asked),
        *map(_describe_condition, asked.conditions),
        *(f"campaign {name}" for name in asked.campaign_names),
        f"{asked.kind} executions" if asked.kind else "executions of all kinds",
        f"n = {number:,}",
    ]
    return "; ".join(said)


def _describe_condition(where: Condition) -> str:
    if where.column != VARIANT_COLUMN or where.operator not in ("=", "!="):
        return str(where)
    said = " or ".join(describe_variant(str(value or "")) or "–" for value in where.values)
    return f"variant {said}" if where.operator == "=" else f"no variant {said}"


def describe_window(asked: ExploreQuery) -> str:
    """The days of a figure."""
    if asked.first and asked.last:
        return f"{asked.first} to {asked.last}"
    if asked.first or asked.last:
        return f"from {asked.first}" if asked.first else f"to {asked.last}"
    return "all days"


def y_axis_title(asked: ExploreQuery, unit: DisplayUnit) -> str:
    """What stands along the vertical axis."""
    return f"{asked.metric} in {unit.name}" if unit.name else asked.metric


def describe_groups(asked: ExploreQuery) -> str:
    """What is drawn of each group."""
    if asked.view == LATENCY:
        return (
            "Steps are the share of a group's reads in each bin of latency; a bin is twice as wide as "
            "the one before, and named by its lower edge. Reads are summed up in bins while they are "
            "measured, so that what lies within one is not known."
        )
    said = [
        _GROUP_CAPTIONS[DISTRIBUTION if asked.view == DISTRIBUTION else asked.bars],
        _EXCLUDED_NOTE,
    ]
    if asked.scale == "log":
        said.append("Means of zero and below have no place on a logarithmic axis.")
    return " ".join(said)


def describe_bars(asked: ExploreQuery) -> str:
    """What points and bars are, in a few words."""
    return _BAR_CAPTIONS[asked.bars if asked.view not in (DISTRIBUTION, LATENCY) else asked.view]


def explain_empty_figure(asked: ExploreQuery, points: Sequence[FigurePoint]) -> str:
    """Why nothing can be drawn of groups that there are."""
    good = sum(point.good for point in points)
    if not good:
        return "Nothing to draw: none of the selected executions is good."
    if asked.view == LATENCY:
        return (
            "Nothing to draw: no good execution that is selected has recorded how long reads took."
        )
    if any(point.mean is not None for point in points):
        return "Nothing to draw: no mean is above zero, and the axis is logarithmic."
    return f"Nothing to draw: no good execution that is selected has recorded {asked.metric}."


def describe_left_out(left: int, of: int, most: tuple[int, int, int], *, newest: bool) -> str:
    """That not all could be drawn."""
    places, series, panels = most
    which = "newest days, weeks or months" if newest else "first places"
    return (
        f"The figure shows {of - left} of {of} marks: at most the {places} {which}, {series} series and "
        f"{panels} panels. CSV, JSON and TTree have all."
    )


_GROUP_CAPTIONS = {
    DISTRIBUTION: "Boxes hold the middle half of the executions around their median, whiskers end at "
    "the 5 % and 95 % quantiles.",
    RMS: "Points are means over executions, error bars their RMS around the mean; a single one has no "
    "bar.",
    INTERVAL: "Points are means over jobs of each job's mean, error bars the 95 % t interval of that "
    "mean; one job alone has no bar.",
    NO_BARS: "Points are means over executions.",
}
_BAR_CAPTIONS = {
    DISTRIBUTION: "medians, quartiles, 5 % and 95 % quantiles of executions",
    LATENCY: "share of the reads of a group in each bin of latency",
    RMS: "means, error bars: RMS of executions",
    INTERVAL: "means over jobs, error bars: 95 % interval of the mean",
    NO_BARS: "means of executions",
}
