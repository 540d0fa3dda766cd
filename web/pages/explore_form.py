"""Form of Explore and S0: metrics, columns, looks, and values to filter by."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.job_spec import EXECUTION_KINDS
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.query_model import ROLLUP_GROUPINGS, is_variant_axis
from treehammer.sql.write.store import Store
from treehammer.web.figures.explore_query import (
    BARS,
    DIMENSIONS,
    FILTERS,
    LATENCY,
    METRICS,
    NO_COLUMN,
    SCALES,
    VIEWS,
    ExploreQuery,
    title_choice,
)
from treehammer.web.figures.figure_points import FigurePoints
from treehammer.web.labels import VARIANT_COLUMN, label_variants

#: Values listed in a filter; others can be typed.
MAX_FILTER_CHOICES = 300
#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 100


def list_form_values(
    store: Store, query: ExploreQuery, points: FigurePoints, action: str
) -> Mapping[str, Any]:
    """Return the choices offered by the form.

    Args:
        store: the database.
        query: parameters of the figure.
        points: groups of the figure.
        action: address of the figure's page.
    """
    axes = [name for name in query.group_columns if is_variant_axis(name)]
    columns = {
        title_choice(name): name
        for name in sorted((*DIMENSIONS, *axes), key=lambda name: name not in ROLLUP_GROUPINGS)
    }
    metrics = sorted(METRICS, key=lambda metric: metric.name not in ROLLUP_METRICS)
    is_latency = query.view == LATENCY
    looks = {} if is_latency else {"bars": BARS, "scale": SCALES}
    return {
        "query": query,
        "action": action,
        "metrics": {} if is_latency else {title_choice(item.name): item for item in metrics},
        "columns": columns,
        "chosen": {
            name: title_choice(text) if text else NO_COLUMN
            for name in ("metric", "by", "color", "panels")
            for text in [getattr(query, name)]
        },
        "window": query.list_inputs(first=None, last=None),
        "looks": query.list_inputs(
            view=VIEWS,
            **looks,
            kind={"": "all kinds", **{kind: kind for kind in EXECUTION_KINDS}},
        ),
        "filters": list(_list_filters(store, query, points)),
        "campaigns": campaign_queries.list_campaign_choices(
            store, MAX_CAMPAIGN_CHOICES, query.campaigns
        ),
        "filtered": bool(query.conditions or query.unreadable_conditions or query.campaigns),
    }


@dataclass(frozen=True)
class _Filter:
    """Values of a column that can be selected.

    Attributes:
        column: the column.
        labels: text by value.
        chosen: values that are required.
        limit: number of listed values if there are more, else 0.
    """

    column: str
    labels: Mapping[str, str]
    chosen: Collection[str]
    limit: int = 0

    @property
    def is_listed(self) -> bool:
        """Whether values differ from their texts, which a list alone can translate."""
        return self.column == VARIANT_COLUMN


def _list_filters(store: Store, query: ExploreQuery, points: FigurePoints) -> Iterator[_Filter]:
    """List the values of the usual columns, and of those that the figure groups by."""
    stored = overview_queries.list_values_by_column(store, FILTERS, MAX_FILTER_CHOICES + 1)
    for name in query.listed_columns:
        values_of_column = stored.get(name)
        if values_of_column is None:
            values = {point.key.get(name) for point in points.points}
            values_of_column = [str(value) for value in values if value is not None]
        chosen = query.chosen_values(name)
        texts = {*values_of_column[:MAX_FILTER_CHOICES], *chosen} - {""}
        labels = (
            label_variants(texts).names
            if name == VARIANT_COLUMN
            else {text: text for text in sorted(texts, key=natural_sort_key)}
        )
        is_cut = len(values_of_column) > MAX_FILTER_CHOICES
        if labels:
            yield _Filter(name, labels, chosen, MAX_FILTER_CHOICES if is_cut else 0)
