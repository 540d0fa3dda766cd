"""Fingerprint of the measurements in a selection, which changes when their content does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from treehammer.sql.read.measurement_queries import MeasurementQueries
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.read.reader import ResultsReader


@dataclass(frozen=True)
class SelectionFingerprint:
    """Counts that identify the content of a selection.

    A stored measurement changes only when it is marked implausible or its columns are pruned.

    Attributes:
        rows: selected measurements; limit + 1 stands for any larger number.
        implausible: measurements marked implausible.
        pruned: absent values of prunable columns.
    """

    rows: int
    implausible: int
    pruned: int


def fingerprint_selection(
    reader: ResultsReader, selection: Selection, prunable: Sequence[str], limit: int
) -> SelectionFingerprint:
    """Count the rows, implausible rows and absent values of a selection, up to ``limit`` + 1 rows."""
    with reader.connection() as connection:
        queries = MeasurementQueries(selection, connection.dialect.name)
        query = queries.measurements(["plausible", *prunable]).order_by(None).limit(limit + 1)
        plausible, *columns = (selected := query.subquery("selected")).c
        # Oracle cannot count LOB columns, so that a CASE counts their NULLs.
        sql_one: sa.ColumnElement[int] = sa.literal_column("1")
        conditions = (plausible == sa.false(), *(column.is_(None) for column in columns))
        counts = (sa.func.count(sa.case((condition, sql_one))) for condition in conditions)
        totals = sa.select(sa.func.count(), *counts).select_from(selected)
        rows, implausible, *absent = map(int, connection.execute(totals).one())
        return SelectionFingerprint(rows, implausible, sum(absent))
