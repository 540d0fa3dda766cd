"""Queries on the operations of load tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import Value
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.core.schema import operation

#: Row of the table of operations: values by name; empty text is None.
OperationRow = Mapping[str, Value]

OPERATION_COLUMNS = tuple(metric.name for metric in OPERATION_METRICS)


def fetch_operations_of(
    connection: Connection, ids: Sequence[str]
) -> defaultdict[str, list[OperationRow]]:
    """Fetch the operations of measurements, in order; at most 1000 identities."""
    query = (
        sa.select(operation.c.measurement_id, *(operation.c[name] for name in OPERATION_COLUMNS))
        .where(operation.c.measurement_id.in_(ids))
        .order_by(operation.c.measurement_id, operation.c.line)
    )
    operations: defaultdict[str, list[OperationRow]] = defaultdict(list)
    for id_, *values in connection.execute(query):
        operations[id_].append(dict(zip(OPERATION_COLUMNS, values, strict=True)))
    return operations


def restore_operation(row: OperationRow) -> dict[str, Value]:
    """Restore a row as its record holds it: with '' for unknown text."""
    return {name: "" if value is None else value for name, value in row.items()}
