"""Operations of load tests: their rows beside the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import Value
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.core.schema import operation
from treehammer.sql.engine.database_engine import CHUNK_ROWS
from treehammer.sql.read.measurement_queries import OperationRow

#: Type of a column -> conversion to the value that a database returns.
_CONVERTERS: Mapping[str, Callable[[Any], Value]] = {
    "text": lambda text: text or None,
    "float": float,
    "int": int,
    "bool": bool,
}


def normalize_operation(row: Mapping[str, Any]) -> OperationRow:
    """Normalize a row as a database does: '' to None, whole numbers to float in float columns."""
    return {metric.name: _CONVERTERS[metric.type](row[metric.name]) for metric in OPERATION_METRICS}


def insert_operations(
    connection: Connection, operations: Mapping[str, Sequence[OperationRow]]
) -> None:
    """Insert the operations of new measurements, by identity."""
    remaining = _number_rows(operations)
    while chunk := list(islice(remaining, CHUNK_ROWS)):
        connection.execute(sa.insert(operation), chunk)


def _number_rows(operations: Mapping[str, Sequence[OperationRow]]) -> Iterator[dict[str, Value]]:
    for id_, rows in operations.items():
        for line, row in enumerate(rows):
            yield {**row, "measurement_id": id_, "line": line}
