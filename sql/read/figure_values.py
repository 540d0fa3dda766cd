"""Single values of figures, and the number of measurements that a query would read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core import measurement_view
from treehammer.sql.core.metric_sums import credible_value
from treehammer.sql.core.outcomes import has_outcome
from treehammer.sql.core.schema import measurement
from treehammer.sql.read.figure_query import (
    DAY,
    ROLLUP_GROUPINGS,
    TIME_UNITS,
    FigureQuery,
    coarsen_day,
)
from treehammer.sql.read.figure_sql import (
    FIGURE_FETCH_ROWS,
    GroupKey,
    fetch_figure,
    measurement_conditions,
)
from treehammer.sql.read.measurement_selection import Selection


def estimate_max_measurements(connection: Connection, figure: FigureQuery) -> int:
    """Estimate an upper limit of the selected measurements from roll-ups and the index of campaigns.

    It may be far more than there are, as conditions on other columns are left aside.
    """
    known = tuple(w for w in figure.selection.conditions if w.column in ROLLUP_GROUPINGS)
    selection = Selection(conditions=known)
    rolled = replace(
        figure, metrics=(), by=(), selection=selection, latencies=False, from_measurements=False
    )
    found = sum(group.measurements for group in fetch_figure(connection, rolled).groups)
    if not figure.selection.campaigns:
        return found
    of_campaigns = measurement.c.campaign_id.in_(figure.selection.campaigns)
    count = sa.select(sa.func.count()).select_from(measurement).where(of_campaigns)
    return min(found, connection.scalar(count) or 0)


def fetch_values(connection: Connection, figure: FigureQuery) -> Iterator[tuple[GroupKey, float]]:
    """Yield the values of the figure's first metric with their groups, of good measurements only.

    In no order.  Values that no figure counts are left out here, too.
    """
    metric, *_ = figure.metrics
    fetched = [DAY if name in TIME_UNITS else name for name in figure.by]
    tables = measurement_view.join_dimensions([*fetched, metric])
    joined, column = measurement_view.join_metric(tables, metric)
    value = credible_value(column)
    query = (
        sa.select(*map(measurement_view.catalogue_column, fetched), value)
        .select_from(joined)
        .where(
            *measurement_conditions(figure, connection.dialect.name),
            has_outcome(Outcome.GOOD),
            value.is_not(None),
        )
    )
    with connection.execute(query.execution_options(yield_per=FIGURE_FETCH_ROWS)) as rows:
        for *group, number in rows:
            key = tuple(
                coarsen_day(name, found) if name in TIME_UNITS and name != DAY else found
                for name, found in zip(figure.by, group, strict=True)
            )
            yield key, float(number)
