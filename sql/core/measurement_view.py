"""Catalogue columns of measurements, joined from all tables that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from treehammer.sql.core.column_names import EXTRA_PREFIX, stored_columns
from treehammer.sql.core.dimensions import DIMENSION_OF, DIMENSIONS, Dimension
from treehammer.sql.core.schema import dimension_tables, extra, measurement


def catalogue_column(name: str) -> sa.Column[Any]:
    """Return the column of a catalogue name; packed lists have none.

    Raises:
        KeyError: no such column exists.
    """
    dimension = DIMENSION_OF.get(name)
    return measurement.c[name] if dimension is None else dimension_tables[dimension.name].c[name]


def select_columns(names: Iterable[str]) -> sa.Select[Any]:
    """Select catalogue columns, ordered as in :func:`stored_columns`, of all measurements."""
    columns = stored_columns(names)
    return sa.select(*(catalogue_column(name) for name in columns)).select_from(
        join_dimensions(columns)
    )


def join_dimensions(names: Iterable[str]) -> sa.FromClause:
    """Join the measurements to the dimensions that hold any of these columns."""
    return _join_tables(
        frozenset(DIMENSION_OF[name].name for name in names if name in DIMENSION_OF)
    )


@lru_cache(maxsize=64)
def _join_tables(tables: frozenset[str]) -> sa.FromClause:
    """Join the measurements to some dimensions; cached, as copying their columns takes long."""
    joined: sa.FromClause = measurement
    for dimension in DIMENSIONS:
        if dimension.name in tables:
            joined = joined.join(dimension_tables[dimension.name])
    return joined


def join_metric(
    tables: sa.FromClause, name: str, number: int = 0, *, outer: bool = False
) -> tuple[sa.FromClause, sa.ColumnElement[Any]]:
    """Return the column of a metric, and the tables joined to it if a test defined it.

    Args:
        tables: the measurements, with the dimensions of catalogue metrics.
        name: of the catalogue, or with :data:`EXTRA_PREFIX`.
        number: distinguishes several metrics of one query.
        outer: keep measurements that lack the metric.
    """
    if not name.startswith(EXTRA_PREFIX):
        return tables, catalogue_column(name)
    metric_table = extra.alias(f"extra{number}")
    of_measurement = metric_table.c.measurement_id == measurement.c.measurement_id
    named = metric_table.c.name == name.removeprefix(EXTRA_PREFIX)
    return tables.join(
        metric_table, sa.and_(of_measurement, named), isouter=outer
    ), metric_table.c.value


def measurements_where(name: str, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Convert a condition on catalogue column ``name`` to one on measurements, without a join."""
    dimension = DIMENSION_OF.get(name)
    return condition if dimension is None else measurements_in_dimension(dimension, condition)


def measurements_in_dimension(
    dimension: Dimension, condition: sa.ColumnElement[bool]
) -> sa.ColumnElement[bool]:
    """Select the measurements whose row in a dimension meets a condition."""
    rows = sa.select(dimension_tables[dimension.name].c.id).where(condition)
    return measurement.c[dimension.key].in_(rows)
