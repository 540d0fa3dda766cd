"""Queries on measurements, and on the operations of load tests.

Rows are streamed from one state of the database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME, Value
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.collectors.record.outcome import INTERRUPTED_CLASSES
from treehammer.collectors.record.value_checks import is_storable
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_columns import (
    ALL_COLUMNS,
    PACKED_COLUMNS,
    stored_columns,
    unpack_lists,
)
from treehammer.sql.core.rows import ExtraRow
from treehammer.sql.core.schema import MEASUREMENT_ORDER, extra, measurement, operation
from treehammer.sql.engine.database_engine import load_by_ids
from treehammer.sql.read.figure_sql import load_figure
from treehammer.sql.read.query_model import FigureQuery, FigureResult, Selection, compile_selection

#: Row of the table of operations: values by name; empty text is None.
OperationRow = Mapping[str, Value]
OPERATION_COLUMNS = tuple(metric.name for metric in OPERATION_METRICS)
_TEXT_COLUMNS = tuple(metric.name for metric in OPERATION_METRICS if metric.type == "text")
#: Rows that are fetched at a time.
FETCH_ROWS = 2000
_STREAMED = {"yield_per": FETCH_ROWS}


def load_operations_of(
    connection: Connection, ids: Sequence[str]
) -> defaultdict[str, list[OperationRow]]:
    """Load the operations of measurements, in order; at most 1000 identities."""
    query = (
        sa.select(operation.c.measurement_id, *(operation.c[name] for name in OPERATION_COLUMNS))
        .where(operation.c.measurement_id.in_(ids))
        .order_by(operation.c.measurement_id, operation.c.line)
    )
    operations: defaultdict[str, list[OperationRow]] = defaultdict(list)
    for id_, *values in connection.execute(query):
        operations[id_].append(dict(zip(OPERATION_COLUMNS, values, strict=True)))
    return operations


def load_extras_of(connection: Connection, ids: Iterable[str]) -> dict[str, dict[str, float]]:
    """Load the test-defined metrics of measurements: identity -> name -> value."""
    query = sa.select(extra.c.measurement_id, extra.c.name, extra.c.value)
    extras: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for id_, name, value in load_by_ids(connection, query, extra.c.measurement_id, ids):
        extras[id_][name] = value
    return extras


def restore_operation(row: OperationRow) -> dict[str, Value]:
    """Restore a row as its record holds it: with '' for unknown text, without unknown numbers."""
    return {
        name: "" if value is None else value
        for name, value in row.items()
        if value is not None or name in _TEXT_COLUMNS
    }


def name_values(
    rows: Iterable[Sequence[Any]], columns: Sequence[str]
) -> Iterator[dict[str, Value]]:
    """Convert rows of :func:`.measurement_sql.select_columns` to values by catalogue name."""
    names = stored_columns(columns)
    packed = any(name in PACKED_COLUMNS for name in columns)
    for row in rows:
        values = dict(zip(names, row, strict=True))
        if packed:
            values.update(unpack_lists(values.pop(names[-1])))
        yield {name: values[name] for name in columns} if packed else values


def select_measurements(
    selection: Selection, dialect: str, columns: Sequence[str] = ALL_COLUMNS
) -> sa.Select[Any]:
    """Select columns of the selected measurements, as named by :func:`.stored_columns`, in order.

    Raises:
        KeyError: a column is not in the catalogue.
    """
    query = measurement_sql.select_columns(METRICS_BY_NAME[name].name for name in columns)
    return query.where(*compile_selection(selection, dialect)).order_by(*MEASUREMENT_ORDER)


class MeasurementQueries(ABC):
    """Queries on measurements, each on one state of the database.

    Everything is ordered by campaign, job, attempt, round and position.
    """

    @property
    @abstractmethod
    def dialect(self) -> str:
        """SQL dialect of the database."""

    @abstractmethod
    def connection(self) -> AbstractContextManager[Connection]:
        """Connect to one state of the database."""

    def measurements(
        self, selection: Selection, columns: Sequence[str] = ALL_COLUMNS
    ) -> Iterator[dict[str, Value]]:
        """Stream the selected measurements as values by catalogue name; unknown ones are ``None``.

        Raises:
            KeyError: a column is not in the catalogue.
        """
        query = self._select_measurements(selection, columns).execution_options(**_STREAMED)
        # Damaged values are errors of the connection, too.
        with self.connection() as connection, connection.execute(query) as rows:
            yield from name_values(rows, columns)

    def measurement_rows(
        self, selection: Selection, columns: Sequence[str]
    ) -> Generator[Sequence[Any], None, None]:
        """Stream the selected measurements as rows of :func:`.stored_columns`."""
        return self._stream(self._select_measurements(selection, columns))

    def count_selected(self, selection: Selection) -> int:
        """Count the selected measurements."""
        query = sa.select(sa.func.count()).select_from(measurement)
        with self.connection() as connection:
            return int(connection.scalar(self._apply_selection(query, selection)) or 0)

    def extras(self, selection: Selection) -> Iterator[ExtraRow]:
        """Load metrics that tests define for the selected measurements."""
        columns = (extra.c.measurement_id, extra.c.name, extra.c.value)
        query: sa.Select[Any] = sa.select(*columns).join(measurement)
        query = self._apply_selection(query, selection)
        for row in self._stream(query.order_by(*MEASUREMENT_ORDER, extra.c.name)):
            yield ExtraRow(*row)

    def extra_names(self, selection: Selection) -> list[str]:
        """List the test-defined metrics of the selected measurements, sorted."""
        query = sa.select(extra.c.name).distinct().join(measurement).order_by(extra.c.name)
        with self.connection() as connection:
            return [*connection.scalars(self._apply_selection(query, selection))]

    def operations(
        self, selection: Selection, columns: Sequence[str] = ()
    ) -> Iterator[dict[str, Value]]:
        """Stream the operations of the selected measurements, in order.

        Args:
            selection: the measurements.
            columns: catalogue columns of the measurement to add to each row.
        """
        names = ("measurement_id", "line", *OPERATION_COLUMNS, *columns)
        query = self._select_operations(selection, columns)
        for row in self._stream(query.order_by(*MEASUREMENT_ORDER, operation.c.line)):
            yield dict(zip(names, row, strict=True))

    def operation_owners(
        self, selection: Selection, columns: Sequence[str]
    ) -> list[dict[str, Value]]:
        """List catalogue columns of the selected measurements that have operations, in order."""
        query = self._select_measurements(selection, columns)
        first = sa.and_(
            operation.c.measurement_id == measurement.c.measurement_id, operation.c.line == 0
        )
        with self.connection() as connection:
            rows = connection.execute(query.where(sa.exists().where(first)))
            return [dict(zip(columns, row, strict=True)) for row in rows]

    def operations_of(self, ids: Sequence[str]) -> Mapping[str, list[OperationRow]]:
        """Load the operations of at most 1000 measurements by identity, in order."""
        with self.connection() as connection:
            return load_operations_of(connection, ids)

    def has_operations(self, selection: Selection) -> bool:
        """Check whether any selected measurement has operations."""
        query = self._select_operations(selection).limit(1)
        with self.connection() as connection:
            if connection.scalar(sa.select(operation.c.line).limit(1)) is None:
                return False
            return connection.execute(query).first() is not None

    def count_operation_rows(self, selection: Selection) -> int:
        """Count the rows of operations of the selected measurements."""
        count = self._select_operations(selection).with_only_columns(sa.func.count())
        with self.connection() as connection:
            return int(connection.execute(count).scalar_one())

    def has_extra(self, name: str) -> bool:
        """Return whether any measurement has this test-defined metric."""
        query = sa.select(extra.c.name).where(extra.c.name == name).limit(1)
        with self.connection() as connection:
            return is_storable(name) and connection.scalar(query) is not None

    def load_figure(self, figure: FigureQuery, most: int | None = None) -> FigureResult:
        """Compute counts, means and spreads of metrics in groups, of which ``most`` are allowed."""
        with self.connection() as connection:
            return load_figure(connection, figure, most)

    def count_by_attempt(self, campaign_id: str) -> dict[tuple[str, int], int]:
        """Count the measurements that each attempt of a job completed, well or not.

        Interrupted ones are left out; attempts without any are absent.
        """
        by = (measurement.c.job_id, measurement.c.attempt)
        failure = measurement.c.failure_class
        is_completed = sa.or_(failure.is_(None), failure.not_in(INTERRUPTED_CLASSES))
        query = (
            sa.select(*by, sa.func.count())
            .where(measurement.c.campaign_id == campaign_id, is_completed)
            .group_by(*by)
        )
        with self.connection() as connection:
            rows = connection.execute(query)
            return {(str(job_id), int(number)): int(count) for job_id, number, count in rows}

    def _select_measurements(self, selection: Selection, columns: Sequence[str]) -> sa.Select[Any]:
        return select_measurements(selection, self.dialect, columns)

    def _select_operations(
        self, selection: Selection, columns: Sequence[str] = ()
    ) -> sa.Select[Any]:
        """Select the operations of the measurements, beside catalogue columns of these."""
        names = [operation.c[name] for name in ("measurement_id", "line", *OPERATION_COLUMNS)]
        query: sa.Select[Any] = sa.select(*names, *map(measurement_sql.catalogue_column, columns))
        tables = measurement_sql.join_dimensions(columns).join(operation)
        return self._apply_selection(query.select_from(tables), selection)

    def _apply_selection(self, query: sa.Select[Any], selection: Selection) -> sa.Select[Any]:
        return query.where(*compile_selection(selection, self.dialect))

    def _stream(self, query: sa.Select[Any]) -> Generator[Any, None, None]:
        # Closes the server's cursor, also for a reader that stops early.
        query = query.execution_options(**_STREAMED)
        with self.connection() as connection, connection.execute(query) as rows:
            yield from rows


class DatabaseSnapshot(MeasurementQueries):
    """Queries on one state of the database, unaffected by concurrent writes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> str:
        """SQL dialect of the database."""
        return self._connection.dialect.name

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield the connection of this state."""
        yield self._connection
