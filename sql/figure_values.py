"""What figures need beside sums: single values, and how many measurements an answer would read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql import rollups, wide
from treehammer.sql.figure_queries import FETCH, Key, answer, measured_conditions
from treehammer.sql.figures import DAY, ROLLED_BY, TIMES, Figure, coarser
from treehammer.sql.schema import extra, measurement
from treehammer.sql.selection import Selection
from treehammer.sql.wide import EXTRA_PREFIX


def most(connection: Connection, figure: Figure) -> int:
    """No more measurements than this are selected: from roll-ups and the index of campaigns.

    It may be far more than there are, as conditions on other columns are left aside.
    """
    known = tuple(w for w in figure.selection.wheres if w.column in ROLLED_BY)
    selection = Selection(wheres=known)
    rolled = replace(figure, metrics=(), by=(), selection=selection, latencies=False, raw=False)
    found = sum(group.measurements for group in answer(connection, rolled).groups)
    if not figure.selection.campaigns:
        return found
    of_campaigns = measurement.c.campaign_id.in_(figure.selection.campaigns)
    count = sa.select(sa.func.count()).select_from(measurement).where(of_campaigns)
    return min(found, connection.scalar(count) or 0)


def values(connection: Connection, figure: Figure) -> Iterator[tuple[Key, float]]:
    """The values of the figure's first metric, each with its group; good measurements alone.

    In no order.  Values that no figure counts are left out here, too.
    """
    metric, *_ = figure.metrics
    fetched = [DAY if name in TIMES else name for name in figure.by]
    joined = wide.joined([*fetched, metric])
    if metric.startswith(EXTRA_PREFIX):
        mine = extra.c.measurement_id == measurement.c.measurement_id
        named = extra.c.name == metric.removeprefix(EXTRA_PREFIX)
        joined = joined.join(extra, sa.and_(mine, named))
    column = extra.c.value if metric.startswith(EXTRA_PREFIX) else wide.column(metric)
    value = rollups.credible(column)
    query = (
        sa.select(*map(wide.column, fetched), value)
        .select_from(joined)
        .where(
            *measured_conditions(figure, connection.dialect.name),
            measurement.c.plausible == sa.true(),
            measurement.c.failure_class.is_(None),
            value.is_not(None),
        )
    )
    with connection.execute(query.execution_options(yield_per=FETCH)) as rows:
        for *group, number in rows:
            key = tuple(
                coarser(name, found) if name in TIMES and name != DAY else found
                for name, found in zip(figure.by, group, strict=True)
            )
            yield key, float(number)
