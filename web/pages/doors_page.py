"""Doors and protocols compared by the same reads of few branches, or of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from treehammer.analysis.comparison.verdict_text import describe_change, format_change_interval
from treehammer.analysis.descriptive.door_comparison import (
    DoorComparison,
    DoorContrast,
    compare_doors,
    list_door_means,
)
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import DAY, FigureQuery
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS
from treehammer.tables import DataTable, build_table
from treehammer.text_formatting import pluralize
from treehammer.web.addresses import link_to
from treehammer.web.columns import column
from treehammer.web.display_formats import format_per_cent
from treehammer.web.figures import figure_layout
from treehammer.web.figures.explore_query import ExploreQuery, View
from treehammer.web.figures.figure_captions import describe_window
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.figures.figure_points import MAX_READ
from treehammer.web.labels import title_column
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import OneOf
from treehammer.web.sections import Figure, Form, Link, Links, Section, headline, quiet

#: Kinds of doors that can be compared, by their columns.
DOORS = {"door": "doors", "door_protocol": "protocols"}
#: Reads by the branches that they request.
READS = {"few": "few branches", "all": "all branches"}
_METRICS = ("wall_per_event_s", "cpu_per_event_s", "event_rate_hz", "eff_job")


class DoorsQuery(ExploreQuery):
    """Parameters of the comparison of doors."""

    opening_view = View.MEANS

    by: Annotated[str, OneOf(tuple(DOORS))] = Field("door", title="Compare", description="Column.")
    metric: Annotated[str, OneOf(_METRICS)] = Field("wall_per_event_s", description="Metric.")
    reads: Annotated[str, OneOf(tuple(READS))] = Field("few", description="Reads.")

    @property
    def figure(self) -> FigureQuery:
        """Query to the database: the means of each work by site, day and door."""
        columns = dict.fromkeys(("site", DAY, self.by, *WORKLOAD_COLUMNS))
        return replace(super().figure, by=tuple(columns))

    @property
    def noun(self) -> str:
        """Noun for one of the compared things."""
        return title_column(self.by)


@page(
    "/figures/doors",
    "doors",
    DoorsQuery,
    position=23,
    help="access",
    api=PageOperation(
        "compareDoors",
        "Doors or protocols by the same reads, against the best one",
        {"doors": "the others: difference with its interval"},
        ("answer", "selection"),
    ),
)
def doors_page(request: PageRequest[DoorsQuery]) -> PageContent:
    """Answer which door or protocol is best for sparse reads."""
    query = request.query.resolve(request.store)
    with request.store.connection() as connection:
        groups = DatabaseSnapshot(connection).load_figure(query.figure, MAX_READ).groups
    means = list_door_means(groups, query.by, query.metric, is_sparse=query.reads == "few")
    is_lower_better = METRICS_BY_NAME[query.metric].better == "lower"
    comparison = compare_doors(means, is_lower_better=is_lower_better)
    table = _build_table(comparison, query)
    title = f"{query.noun.capitalize()} for reads of {READS[query.reads]}"
    layout = _lay_out(comparison, query, title)
    about = {"answer": answer(comparison, query), "selection": describe_window(query)}
    if not request.is_html:
        return PageContent(title, (), (table,), about)
    conditions = [str(condition) for condition in query.conditions]
    metrics = {name: title_column(name) for name in _METRICS}
    parameters = {
        "metric": query.metric,
        "by": query.by,
        "color": "site",
        "view": View.RELATIVE,
        "from": query.first,
        "to": query.last,
        "where": query.where,
    }
    explore = link_to("explore", query=parameters)
    sections: list[Section] = [
        headline(about["answer"]),
        Form(
            query.list_inputs(by=DOORS, reads=READS, metric=metrics, first=None, last=None),
            hidden=[("where", condition) for condition in conditions],
        ),
        *([Figure("doors", FigureChart(layout), _CAPTION, title=title)] if layout else []),
        quiet("Selection: ", "; ".join([about["selection"], *conditions]), "."),
        *([table] if table.rows else []),
        Links([Link(f"{metrics[query.metric]} by {query.noun}, by the same work", explore)]),
    ]
    return PageContent(title, sections, (table,), about)


_CAPTION = (
    "Differences from the best one: the same test, variant, dataset and release read at the same site on "
    "the same day. Each site and day counts once, and lines are intervals that hold together with 95 %."
)


def answer(comparison: DoorComparison, query: DoorsQuery) -> str:
    """Answer in a sentence which door is best, or why none can be named."""
    reads = f"reads of {READS[query.reads]}"
    noun, plural = query.noun, DOORS[query.by]
    if not comparison.means:
        return f"No {noun} can be named: there are no {reads} in this selection."
    if len(comparison.doors) == 1:
        return f"No {noun} can be named: all {reads} went through {comparison.doors[0]}."
    if not comparison.best:
        ties = comparison.list_ties()
        tied = ""
        if ties:
            tied = (
                f" Each {' and each '.join(ties)} has one {noun} only, so a difference between {plural} "
                f"could as well come from the {' and '.join(ties)}."
            )
        return (
            f"No {noun} can be named: no site did the same {reads} through two {plural} on the same day."
            f"{tied} To compare them, run the same variants through several {plural} of a site."
        )
    certain = [contrast for contrast in comparison.contrasts if _is_certain(contrast, comparison)]
    if not certain:
        return (
            f"No {noun} is certainly the best for {reads}: {comparison.best} has the best mean, but "
            f"{_describe(comparison.contrasts[0], comparison, query)}."
        )
    doubtful = [contrast.door for contrast in comparison.contrasts if contrast not in certain]
    contrasts = "; ".join(_describe(contrast, comparison, query) for contrast in certain)
    rest = f"; not certainly different: {', '.join(doubtful)}" if doubtful else ""
    return f"{comparison.best} is the best {noun} for {reads}: {contrasts}{rest}."


def _is_certain(contrast: DoorContrast, comparison: DoorComparison) -> bool:
    """Return whether the interval of a difference excludes zero."""
    if contrast.estimate is None:
        return False
    low, high = contrast.estimate.interval(comparison.level)
    return low > 0 or high < 0


def _describe(contrast: DoorContrast, comparison: DoorComparison, query: DoorsQuery) -> str:
    """Describe a difference with its interval and amount of data."""
    amount = f"n = {pluralize(contrast.days, 'day')} with both at {pluralize(len(contrast.by_site), 'site')}"
    if contrast.estimate is None:
        return f"{contrast.door} has too few days beside it ({amount})"
    better = METRICS_BY_NAME[query.metric].better
    change = describe_change(contrast.estimate.mean, query.metric, better)
    interval = format_change_interval(*contrast.estimate.interval(comparison.level))
    title = title_column(query.metric)
    return f"{contrast.door} is {change} in {title} (95 % interval {interval} %; {amount})"


def _build_table(comparison: DoorComparison, query: DoorsQuery) -> DataTable:
    """Build the table of differences from the best door."""

    def find_end(place: int) -> Callable[[DoorContrast], float | None]:
        def get(contrast: DoorContrast) -> float | None:
            estimate = contrast.estimate
            return math.expm1(estimate.interval(comparison.level)[place]) if estimate else None

        return get

    columns = (
        column("door", query.noun),
        column(
            "difference",
            value=lambda contrast: contrast.estimate and math.expm1(contrast.estimate.mean),
        ),
        column("low", "from", format_value=format_per_cent, is_number=True, value=find_end(0)),
        column("high", "to", format_value=format_per_cent, is_number=True, value=find_end(1)),
        column("days", "days with both", is_number=True),
        column("sites", "sites", value=lambda contrast: len(contrast.by_site)),
        column(
            "certain", value=lambda contrast: "yes" if _is_certain(contrast, comparison) else "no"
        ),
    )
    subject = f"{title_column(query.metric)} against {comparison.best or 'none'}"
    return build_table("doors", subject[:1].upper() + subject[1:], columns, comparison.contrasts)


def _lay_out(
    comparison: DoorComparison, query: DoorsQuery, title: str
) -> figure_layout.FigureLayout | None:
    """Lay out the differences as dots with intervals; None without any."""
    estimated = [contrast for contrast in comparison.contrasts if contrast.estimate]
    marks = []
    for place, contrast in enumerate(estimated):
        if contrast.estimate:
            ends = contrast.estimate.interval(comparison.level)
            low, high = (100 * math.expm1(end) for end in ends)
            mean = 100 * math.expm1(contrast.estimate.mean)
            marks.append(figure_layout.FigureMark(0, place, mean, low, high, count=contrast.days))
    if not marks:
        return None
    return figure_layout.FigureLayout(
        kind=figure_layout.Kind.DOTS,
        title=title,
        x_title="",
        y_title=f"{title_column(query.metric)} against {comparison.best}, %",
        groups=("", query.noun, ""),
        count_title="days",
        scale="zero",
        places=tuple(contrast.door for contrast in estimated),
        series=tuple(figure_layout.style_series([("", "", "")])),
        panels=(figure_layout.FigurePanel("", tuple(marks)),),
    )
